"""Packed linear maps against float64, and their independence of the number of rows."""

import pytest
import torch

from kernels.linear import pack
from kernels.linear.reference import linear, linear_float32

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [(96, 64), (151, 75), (576, 1536), (64, 172), (1, 33)]
TOLERANCE = {
    torch.float32: 2e-6,
    torch.bfloat16: 8e-3,
    torch.float16: 1e-3,
}  # of the largest result: one rounding to the dtype


def drawn(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("biased", [False, True])
def test_a_linear_map_equals_float64_up_to_rounding(dtype: torch.dtype, n: int, k: int, biased: bool) -> None:
    weight, bias = drawn(n, k, dtype=dtype, seed=1), drawn(n, dtype=dtype, seed=2) if biased else None
    packed = pack(weight, bias=bias)
    for rows in (1, 3, 64, 70, 333):
        x = drawn(rows, k, dtype=dtype, seed=rows)
        expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
        error = (linear(x, packed).double() - expected).abs().max() / expected.abs().max()
        assert error < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_the_float32_variant_keeps_the_digits_that_the_dtype_would_round_away(dtype: torch.dtype, biased: bool) -> None:
    weight, bias = drawn(300, 576, dtype=dtype, seed=1), drawn(300, dtype=dtype, seed=2) if biased else None
    x = drawn(33, 576, dtype=dtype, seed=3)
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    got = linear_float32(x, pack(weight, bias=bias))
    assert got.dtype == torch.float32
    assert (got.double() - expected).abs().max() / expected.abs().max() < 3e-5


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "k"), [*SHAPES, (960, 576), (3072, 576)])
@pytest.mark.parametrize("run", [linear, linear_float32])
def test_a_rows_bits_do_not_depend_on_the_other_rows(dtype: torch.dtype, n: int, k: int, run) -> None:
    half = k // 2
    weight, x = drawn(n, k, dtype=dtype, seed=1), drawn(600, k, dtype=dtype, seed=2)
    weight[:, k - half :] = weight[:, :half]
    x[:, k - half :] = -x[:, :half]  # sums cancel, so that another order of terms shows whatever the dtype rounds away
    x[:, half : k - half] = 0
    packed = pack(weight)
    whole = run(x, packed)
    for first, rows in (
        (0, 1),
        (5, 1),
        (599, 1),
        (3, 2),
        (0, 16),
        (9, 17),
        (0, 63),
        (1, 64),
        (2, 65),
        (40, 257),
        (11, 512),
    ):
        assert torch.equal(run(x[first : first + rows], packed), whole[first : first + rows]), (first, rows)


def test_a_row_of_nan_stays_alone() -> None:
    packed = pack(drawn(40, 48, dtype=torch.float32, seed=1))
    x = drawn(5, 48, dtype=torch.float32, seed=2)
    clean = linear(x, packed)
    x[3] = torch.nan
    assert torch.equal(linear(x, packed)[[0, 1, 2, 4]], clean[[0, 1, 2, 4]])


def test_no_rows_give_no_rows() -> None:
    assert linear(torch.empty(0, 48), pack(drawn(40, 48, dtype=torch.float32, seed=1))).shape == (0, 40)


def test_an_unknown_quantisation_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="q7_x"):
        pack(torch.zeros(2, 2), quantisation="q7_x")
