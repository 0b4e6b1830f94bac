"""Norm, rotary, MLP, embedding and logits against float64 or transformers' formulas, and their bits' independence of the batch."""

import pytest
import torch
import torch.nn.functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from kernels.embed.reference import embed
from kernels.linear import pack
from kernels.logits.reference import logits
from kernels.mlp.reference import gelu_tanh, mlp, silu
from kernels.rms_norm.reference import rms_norm
from kernels.rotary.reference import rotate
from kernels.rotary.scaling import Llama3Scaling
from kernels.rotary.table import RotarySpec, rotary_table
from kernels.weights import Activation, Embedding, Head, Mlp, Norm

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ORIGINAL = 512


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def norm(size: int) -> Norm:
    return Norm(weight=drawn(size, seed=9) + 1, eps=1e-5)


def exact_norm(x: torch.Tensor, weights: Norm) -> torch.Tensor:
    x = x.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + weights.eps).sqrt() * weights.weight.double()


@pytest.mark.parametrize("size", [33, 64, 96, 576])
def test_rms_norm_equals_float64(size: int) -> None:
    x = drawn(7, size, seed=1) * 3
    assert (rms_norm(x, norm(size)).double() - exact_norm(x, norm(size))).abs().max() < 3e-6


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
@pytest.mark.parametrize("scaled", [False, True])
def test_rotary_equals_transformers(head_dim: int, scaled: bool) -> None:
    rope = {"rope_theta": 10000.0, **({**LLAMA3, "original_max_position_embeddings": ORIGINAL} if scaled else {})}
    config = LlamaConfig(
        head_dim=head_dim, max_position_embeddings=4096, rope_parameters={"rope_type": "default", **rope}
    )
    scaling = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position=ORIGINAL)
    table = rotary_table(RotarySpec(dim=head_dim, theta=10000.0, scaling=scaling if scaled else None), 4096)
    positions = torch.tensor([0, 1, 5, 63, 64, 777, 4095])
    x = drawn(len(positions), 5, head_dim, seed=2)
    cos, sin = LlamaRotaryEmbedding(config)(x, positions[None])
    theirs = apply_rotary_pos_emb(x.transpose(0, 1)[None], x.transpose(0, 1)[None], cos, sin)[0][0].transpose(0, 1)
    assert torch.allclose(rotate(x, table.cos[positions], table.sin[positions]), theirs, atol=1e-6, rtol=0)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("before", "after"), [(True, False), (True, True), (False, True)])
@pytest.mark.parametrize(("hidden", "inner"), [(64, 172), (96, 151)])
def test_mlp_equals_float64(hidden: int, inner: int, before: bool, after: bool, activation: Activation) -> None:
    gate_up, down = drawn(2 * inner, hidden, seed=1) / 8, drawn(hidden, inner, seed=2) / 8
    x = drawn(37, hidden, seed=3)
    weights = Mlp(
        norm=norm(hidden) if before else None,
        gate_up=pack(gate_up),
        down=pack(down),
        activation=activation,
        after=norm(hidden) if after else None,
    )
    gate, up = ((exact_norm(x, norm(hidden)) if before else x.double()) @ gate_up.double().T).chunk(2, -1)
    acted = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
    y = (acted * up) @ down.double().T
    expected = x.double() + (exact_norm(y, norm(hidden)) if after else y)
    assert (mlp(x, weights).double() - expected).abs().max() / expected.abs().max() < 3e-6


def test_silu_has_its_limits() -> None:
    x = torch.tensor([-1e4, -200.0, -1.0, 0.0, 1.0, 200.0, 1e4])
    assert torch.allclose(silu(x).double(), x.double() * torch.sigmoid(x.double()), rtol=1e-6, atol=1e-30)


def test_gelu_has_its_limits() -> None:
    x = torch.tensor([-1e4, -200.0, -8.0, -1.0, 0.0, 1.0, 8.0, 200.0, 1e4])
    assert torch.allclose(gelu_tanh(x).double(), F.gelu(x.double(), approximate="tanh"), rtol=1e-5, atol=1e-9)


def test_activations_leave_their_argument_as_it_is() -> None:
    x = drawn(50, seed=4)
    for activation in (silu, gelu_tanh):
        given = x.clone()
        activation(given)
        assert torch.equal(given, x)


def test_capped_logits_stay_below_the_cap_and_equal_float64() -> None:
    head, x = drawn(199, 96, seed=1), drawn(20, 96, seed=2)
    expected = 5 * torch.tanh(exact_norm(x, norm(96)) @ head.double().T / 5)
    got = logits(x, torch.arange(20), Head(norm=norm(96), proj=pack(head), softcap=5.0))
    assert (got.double() - expected).abs().max() < 1e-5
    assert got.abs().max() <= 5


def test_embeddings_are_scaled_in_float32() -> None:
    table = drawn(50, 24, seed=1).bfloat16()
    tokens = torch.tensor([3, 49, 3, 0])
    assert torch.equal(embed(tokens, Embedding(table=table, scale=4.875)), table[tokens].float() * 4.875)


def test_logits_are_those_of_the_wanted_rows() -> None:
    head = drawn(199, 96, seed=1)
    x = drawn(20, 96, seed=2)
    rows = torch.tensor([19, 0, 7])
    expected = exact_norm(x, norm(96))[rows] @ head.double().T
    got = logits(x, rows, Head(norm=norm(96), proj=pack(head)))
    assert got.dtype == torch.float32
    assert (got.double() - expected).abs().max() / expected.abs().max() < 3e-6


def test_embedding_looks_up_exactly() -> None:
    table = drawn(50, 24, seed=1).bfloat16()
    tokens = torch.tensor([3, 49, 3, 0])
    assert torch.equal(embed(tokens, Embedding(table=table)), table[tokens].float())


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("inner", [151, 172, 1536])
def test_a_rows_bits_do_not_depend_on_the_other_rows(inner: int, activation: Activation) -> None:
    hidden = 75
    weights = Mlp(
        norm=norm(hidden),
        gate_up=pack(drawn(2 * inner, hidden, seed=1).bfloat16()),
        down=pack(drawn(hidden, inner, seed=2).bfloat16()),
        activation=activation,
        after=norm(hidden),
    )
    x = drawn(300, hidden, seed=3)
    whole = mlp(x, weights)
    for first, rows in ((0, 1), (299, 1), (7, 3), (1, 65), (33, 200)):
        assert torch.equal(mlp(x[first : first + rows], weights), whole[first : first + rows])
