"""Norms, activations, embedding and matrix products, in the interpreter, against the references."""

import pytest
import torch

from kernels.embed.reference import embed as reference_embed
from kernels.mlp.reference import activation as reference_activation
from kernels.rms_norm.reference import rms_norm as reference_norm
from kernels.weights import Embedding, Norm
from tests.kernels.pairwise import covering
from tests.kernels.triton_cases import DTYPES, assert_close, drawn, launcher

from kernels.embed.triton import embed  # isort: skip (after the interpreter is set up)
from kernels.linear.triton import linear, linear_float32, matmul, pack  # isort: skip
from kernels.mlp.triton import gated  # isort: skip
from kernels.rms_norm.triton import add, add_rms_norm, rms_norm  # isort: skip

NORMS = {
    "width": (33, 64, 576, 4096),
    "rows": (0, 1, 3),
    "dtype": DTYPES,
    "after": (False, True),
    "norm": (False, True),
}


def norm_of(size: int, seed: int) -> Norm:
    return Norm(weight=drawn(size, seed=seed) + 1, eps=1e-5)


def apart(x: torch.Tensor) -> torch.Tensor:
    """The same values, with NaN between the rows."""
    wide = torch.full((x.shape[0], x.shape[1] + 5), torch.nan, dtype=x.dtype)
    wide[:, : x.shape[1]] = x
    return wide[:, : x.shape[1]]


@pytest.mark.parametrize(",".join(NORMS), covering(NORMS))
def test_residual_and_norm_equal_the_reference(width, rows, dtype, after, norm) -> None:
    x, y = drawn(rows, width), drawn(rows, width, seed=1).to(dtype)
    first, second = norm_of(width, 2) if after else None, norm_of(width, 3) if norm else None
    want = x + (y if first is None else reference_norm(y, first))
    normed = want if second is None else reference_norm(want, second)
    stream, added = apart(x), apart(x)
    out = add_rms_norm(launcher(), stream, apart(y), first, second, dtype)
    add(launcher(), added, apart(y), first)
    assert out.dtype == dtype
    assert out.shape == x.shape
    if rows:
        assert_close(stream, want, torch.float32)
        assert_close(added, want, torch.float32)
        assert_close(out, normed, dtype)
        assert_close(rms_norm(launcher(), stream, second, dtype), normed, dtype)


def test_norm_of_some_rows_alone_takes_those() -> None:
    x, weights = drawn(6, 70), norm_of(70, 1)
    rows = torch.tensor([5, 0, 0, 3])
    got = rms_norm(launcher(), apart(x), weights, torch.float32, rows)
    assert_close(got, reference_norm(x[rows], weights), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "rows", "activation"), [(70, 3, "silu"), (1500, 1, "gelu_tanh"), (16, 0, "silu")])
def test_gated_activation_equals_the_reference(width, rows, activation, dtype) -> None:
    x = (drawn(rows, 2 * width) * 4).to(dtype)
    got = gated(launcher(), apart(x), activation)
    assert got.shape == (rows, width)
    assert got.dtype == dtype
    if rows:
        gate, up = x.float().chunk(2, dim=-1)
        assert_close(got, reference_activation(activation)(gate) * up, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_embedding_equals_the_reference_and_ranks_add_up_to_it(dtype) -> None:
    weights = Embedding(table=drawn(50, 33).to(dtype), scale=1.5)
    tokens = torch.tensor([0, 49, 7, 7, 24, 25])
    want = reference_embed(tokens, weights)
    assert torch.equal(embed(launcher(), tokens, weights), want)
    halves = [Embedding(table=weights.table[first : first + 25], scale=1.5) for first in (0, 25)]
    parts = [embed(launcher(), tokens, half, first) for half, first in zip(halves, (0, 25), strict=True)]
    assert torch.equal(parts[0] + parts[1], want)
    assert embed(launcher(), tokens[:0], weights).shape == (0, 33)


PRODUCTS = {"rows": (0, 1, 70, 130), "shape": ((33, 48), (200, 160)), "dtype": DTYPES, "bias": (False, True)}


@pytest.mark.parametrize(",".join(PRODUCTS), covering(PRODUCTS))
def test_matrix_product_equals_float64(rows, shape, dtype, bias) -> None:
    n, k = shape
    weight, x = drawn(n, k).to(dtype), apart(drawn(rows, k, seed=1).to(dtype))
    own = drawn(n, seed=2).to(dtype) if bias else None
    want = x.double() @ weight.double().T + (0 if own is None else own.double())
    for invariant in (False, True):
        packed = pack(launcher(), weight, None, own, invariant=invariant)
        y, wide = linear(launcher(), x, packed), linear_float32(launcher(), x, packed)
        assert y.shape == wide.shape == (rows, n)
        assert (y.dtype, wide.dtype) == (dtype, torch.float32)
        if rows:
            assert_close(y, want, dtype)
            assert_close(wide, want, torch.float32)


def test_a_rows_product_has_the_same_bits_in_every_batch() -> None:
    packed = pack(launcher(), drawn(70, 200).bfloat16(), None, None, invariant=True)
    x = drawn(130, 200, seed=1).bfloat16()
    whole = matmul(launcher(), x, packed, torch.float32)
    for count in (1, 2, 64, 65):
        assert torch.equal(matmul(launcher(), x[:count], packed, torch.float32), whole[:count])


def test_a_quantisation_that_no_kernel_serves_is_refused() -> None:
    with pytest.raises(ValueError, match="q4"):
        pack(launcher(), drawn(4, 4), "q4", None, invariant=False)


def test_what_a_kernel_leaves_out_would_show() -> None:
    """tests/kernels/conftest.py: whatever `empty` gives holds NaN, or the largest integer, before a launch."""
    assert torch.empty(3, 5).isnan().all()
    assert torch.empty_like(torch.zeros(4), dtype=torch.bfloat16).isnan().all()
    assert (torch.empty(7, dtype=torch.int64) == torch.iinfo(torch.int64).max).all()
