"""Each packed type is unpacked to the very bits that the gguf package gives."""

import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize

from worker.sources.gguf.quants import PACKINGS, unpack

ALL = pytest.mark.parametrize("kind", sorted(PACKINGS), ids=lambda kind: kind.name)
SERVED = {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"}


def same_bits(ours: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32]) -> bool:
    """Equal as bit patterns, so that the two zeros differ; any NaN equals any other."""
    nan = np.isnan(theirs)
    return bool(
        (np.isnan(ours) == nan).all() and np.array_equal(ours.view(np.uint32)[~nan], theirs.view(np.uint32)[~nan])
    )


def test_the_served_types_are_those_of_the_issue_and_their_blocks_are_ggmls() -> None:
    assert {kind.name for kind in PACKINGS} == SERVED
    assert {kind: (p.values, p.size) for kind, p in PACKINGS.items()} == {k: GGML_QUANT_SIZES[k] for k in PACKINGS}


@ALL
def test_random_bytes_are_unpacked_as_the_gguf_package_does(kind: Kind) -> None:
    size = PACKINGS[kind].size
    data = np.random.default_rng(kind).integers(0, 256, (3, 5, 17 * size), dtype=np.uint8)
    with np.errstate(all="ignore"):  # random scales are infinite and NaN here and there
        ours, theirs = unpack(data, kind), dequantize(data, kind)
    assert ours.dtype == np.float32
    assert ours.shape == theirs.shape
    assert same_bits(ours, theirs)


@ALL
def test_random_bytes_of_finite_scales_are_unpacked_alike_over_several_pieces(kind: Kind) -> None:
    packing = PACKINGS[kind]
    blocks = np.random.default_rng(7).integers(0, 256, ((1 << 20) // packing.values + 37, packing.size), dtype=np.uint8)
    for at in {"Q2_K": (81, 83), "Q3_K": (109,), "Q6_K": (209,)}.get(kind.name, (1, 3)):
        blocks[:, at] &= 0xBF  # the highest bit of the exponent: neither infinite nor NaN
    ours = unpack(blocks, kind)
    assert np.isfinite(ours).all()
    assert same_bits(ours, dequantize(blocks, kind))


def packed(values: npt.NDArray[np.float32], kind: Kind) -> npt.NDArray[np.uint8]:
    """`values` in `kind`. The gguf package cannot make K types: blocks then have plausible scales and random numbers."""
    try:
        return quantize(values, kind)
    except NotImplementedError:
        pass
    random = np.random.default_rng(11)
    packing = PACKINGS[kind]
    blocks = random.integers(0, 256, (values.size // packing.values, packing.size), dtype=np.uint8)
    scales = random.normal(0, 0.01, (len(blocks), 2)).astype("<f2").view(np.uint8)
    at = {"Q2_K": 80, "Q3_K": 108, "Q4_K": 0, "Q5_K": 0, "Q6_K": 208}[kind.name]
    width = min(4, packing.size - at)
    blocks[:, at : at + width] = scales[:, :width]
    return blocks.reshape(len(values), -1)


@ALL
def test_quantised_random_values_are_unpacked_as_the_gguf_package_does(kind: Kind) -> None:
    values = np.random.default_rng(5).normal(0, 1, (64, 512)).astype(np.float32)
    data = packed(values, kind)
    ours = unpack(data, kind)
    assert ours.shape == values.shape
    assert same_bits(ours, dequantize(data, kind))


@pytest.mark.parametrize(("kind", "steps"), [(Kind.Q8_0, 127), (Kind.Q5_0, 15), (Kind.Q4_0, 7)])
def test_quantised_values_come_back_within_one_step(kind: Kind, steps: int) -> None:
    values = np.random.default_rng(5).normal(0, 1, (8, 64)).astype(np.float32)
    back = unpack(quantize(values, kind), kind)
    largest = np.abs(values).reshape(-1, 32).max(axis=1, keepdims=True)
    assert (np.abs(back - values).reshape(-1, 32) <= 1.01 * largest / steps).all()


def test_unpacking_holds_little_beside_its_result() -> None:
    data = np.zeros((4096, 4096 // 256 * 210), dtype=np.uint8)
    unpack(data[:1], Kind.Q6_K)
    tracemalloc.start()
    try:
        result = unpack(data, Kind.Q6_K)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < result.nbytes + (24 << 20)
