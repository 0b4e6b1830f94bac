"""Unpacking of ggml's block-quantised types to float32.

Source of the layouts: ggml's `ggml-common.h` and the `dequantize_row_*` of `ggml-quants.c`. A row is a run of blocks; each function
takes blocks uint8 [n, bytes of one block] and gives float32 [n, values of one block]. Products and sums are in float32 in ggml's own
order, so that results are equal bit for bit. Scales are stored as little-endian float16.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Kind

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_SUPER = 256  # values in a block of the K types
_PIECE = 1 << 20  # values unpacked at once: temporaries stay at a few MiB, whatever the tensor's size


def _scale(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte `at` of each block, [n, 1]."""
    return np.asarray(blocks[:, at : at + 2].view("<f2").astype(np.float32))


def _nibbles(data: Bytes) -> Bytes:
    """[n, ..., bytes] -> [n, ..., 2 * bytes]: all low halves, then all high halves."""
    return np.concatenate([data & 15, data >> 4], axis=-1)


def _fields(data: Bytes, bits: int) -> Bytes:
    """[..., bytes] -> [..., 8 / bits, bytes]: the bytes' lowest `bits` bits, then the next ones, and so on."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return np.asarray((data[..., None, :] >> shifts) & np.uint8((1 << bits) - 1))


def _fifth_bits(blocks: Bytes, at: int) -> Bytes:
    """The 32 bits at byte `at`, each as 0 or 16, [n, 32]."""
    return np.unpackbits(blocks[:, at : at + 4], axis=-1, bitorder="little") << np.uint8(4)


def _q8_0(blocks: Bytes) -> Floats:
    return _scale(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    return _scale(blocks, 0) * (_nibbles(blocks[:, 2:]).view(np.int8) - np.int8(8)).astype(np.float32)


def _q4_1(blocks: Bytes) -> Floats:
    return _scale(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _scale(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    values = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return _scale(blocks, 0) * (values.view(np.int8) - np.int8(16)).astype(np.float32)


def _q5_1(blocks: Bytes) -> Floats:
    values = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return _scale(blocks, 0) * values.astype(np.float32) + _scale(blocks, 2)


def _scaled(values: npt.NDArray[np.int8] | Bytes, scales: Floats) -> Floats:
    """values [n, 256] times scales [n, groups], a group being 256 / groups neighbours: [n, groups, 256 / groups]."""
    grouped = values.reshape(*scales.shape, _SUPER // scales.shape[1]).astype(np.float32)
    return scales[..., None] * grouped


def _q2_k(blocks: Bytes) -> Floats:
    """scales 16, values 64, d, dmin. 16 groups of 16."""
    packed = blocks[:, :16]
    scales = _scale(blocks, 80) * (packed & 15).astype(np.float32)
    minima = _scale(blocks, 82) * (packed >> 4).astype(np.float32)
    values = _fields(blocks[:, 16:80].reshape(-1, 2, 32), 2)
    return (_scaled(values, scales) - minima[..., None]).reshape(-1, _SUPER)


def _q3_k(blocks: Bytes) -> Floats:
    """third bits 32, values 64, scales 12, d. 16 groups of 16; a third bit that is not set takes 4 away."""
    packed = blocks[:, 96:108]
    high = _fields(packed[:, 8:], 2).reshape(-1, 16)
    scales = (_nibbles(packed[:, :8]) | (high << 4)).view(np.int8) - np.int8(32)
    low = _fields(blocks[:, 32:96].reshape(-1, 2, 32), 2).reshape(-1, _SUPER)
    third = _fields(blocks[:, :32], 1).reshape(-1, _SUPER)
    values = (low | (third << 2)).view(np.int8) - np.int8(4)
    return _scaled(values, _scale(blocks, 108) * scales.astype(np.float32)).reshape(-1, _SUPER)


def _scales_and_minima(packed: Bytes) -> tuple[Floats, Floats]:
    """Eight 6-bit scales and minima out of 12 bytes: the first four of each whole, of the last four 2 bits lie apart."""
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([first & 63, (rest & 15) | (first >> 6 << 4)], axis=-1)
    minima = np.concatenate([second & 63, (rest >> 4) | (second >> 6 << 4)], axis=-1)
    return scales.astype(np.float32), minima.astype(np.float32)


def _affine(blocks: Bytes, values: Bytes) -> Floats:
    """Q4_K's and Q5_K's head (d, dmin, 12 bytes of scales) over 8 groups of 32."""
    scales, minima = _scales_and_minima(blocks[:, 4:16])
    scaled = _scaled(values, _scale(blocks, 0) * scales)
    return (scaled - (_scale(blocks, 2) * minima)[..., None]).reshape(-1, _SUPER)


def _q4_k(blocks: Bytes) -> Floats:
    return _affine(blocks, _nibbles(blocks[:, 16:].reshape(-1, 4, 32)))


def _q5_k(blocks: Bytes) -> Floats:
    fifth = _fields(blocks[:, 16:48], 1).reshape(-1, _SUPER)
    return _affine(blocks, _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, _SUPER) | (fifth << np.uint8(4)))


def _q6_k(blocks: Bytes) -> Floats:
    """low halves 128, upper bits 64, scales 16 (int8), d. 16 groups of 16."""
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, _SUPER)
    high = _fields(blocks[:, 128:192].reshape(-1, 2, 32), 2).reshape(-1, _SUPER)
    scales = _scale(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return _scaled((low | (high << 4)).view(np.int8) - np.int8(32), scales).reshape(-1, _SUPER)


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """One type's block: `values` numbers in `size` bytes."""

    values: int
    size: int
    unpack: Callable[[Bytes], Floats]


PACKINGS = {
    Kind.Q4_0: Packing(values=32, size=18, unpack=_q4_0),
    Kind.Q4_1: Packing(values=32, size=20, unpack=_q4_1),
    Kind.Q5_0: Packing(values=32, size=22, unpack=_q5_0),
    Kind.Q5_1: Packing(values=32, size=24, unpack=_q5_1),
    Kind.Q8_0: Packing(values=32, size=34, unpack=_q8_0),
    Kind.Q2_K: Packing(values=_SUPER, size=84, unpack=_q2_k),
    Kind.Q3_K: Packing(values=_SUPER, size=110, unpack=_q3_k),
    Kind.Q4_K: Packing(values=_SUPER, size=144, unpack=_q4_k),
    Kind.Q5_K: Packing(values=_SUPER, size=176, unpack=_q5_k),
    Kind.Q6_K: Packing(values=_SUPER, size=210, unpack=_q6_k),
}


def unpack(data: Bytes, kind: Kind) -> Floats:
    """Rows uint8 [..., bytes of a row] of a type in PACKINGS -> float32 [..., values of a row].

    Beside its result it holds a few MiB: the file's pages are read and let go piece by piece.
    """
    packing = PACKINGS[kind]
    blocks = data.reshape(-1, packing.size)
    values = np.empty((blocks.shape[0], packing.values), dtype=np.float32)
    step = _PIECE // packing.values
    for at in range(0, len(blocks), step):
        values[at : at + step] = packing.unpack(np.ascontiguousarray(blocks[at : at + step]))
    return values.reshape(*data.shape[:-1], -1)
