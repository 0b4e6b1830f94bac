"""What a table of tiles must hold, so that a bad file is refused when it is read and does not become a wrong result later."""

from collections.abc import Iterator, Mapping
from typing import Any

from kernels.errors import NoBackend

_DOT = (16, 256)  # what a matrix instruction takes at least
_ROW = (64, 32_768)  # values of a row
_HEADS = (1, 64)
_ATTENTION = {"BLOCK_M": (16, 128), "BLOCK_N": (16, 128)}
_MATMUL = {"BLOCK_M": (64, 256), "BLOCK_N": (16, 256), "BLOCK_K": (16, 256)}

# Of each kernel, its blocks' names, each with the least and the most that it may be; all are powers of two.
BLOCKS: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "rms_norm": {"MOST_WARPS": (1, 32), "PER_WARP": (32, 8192)},
    "gated": {"BLOCK": _ROW},
    "embed": {"BLOCK": _ROW},
    "qkv": {"BLOCK_H": _HEADS},
    "greedy": {"BLOCK_V": _ROW},
    "sample": {"UNROLL": (1, 32)},
    "logits": {"BLOCK_V": _ROW},
    "logprobs": {"BLOCK_V": _ROW},
    "attention.merge": {"BLOCK_H": _HEADS},
    "lora.shrink": {"BLOCK_M": (16, 64), "BLOCK_K": (16, 512), "SPLIT_K": (1, 32)},
    "lora.expand": {"BLOCK_M": (16, 64), "BLOCK_N": _DOT},
    "matmul.few": _MATMUL,
    "matmul.many": _MATMUL,
    "matmul.wide": _MATMUL,
    "attention": _ATTENTION,
    "attention.decode": _ATTENTION,
    "attention.fixed": _ATTENTION,
    "attention.wide": _ATTENTION,
    "attention.decode.wide": _ATTENTION,
    "attention.fixed.wide": _ATTENTION,
}
WARPS, STAGES = (1, 32), (1, 8)
ANY = "*"
_JOB = {ANY: 16, "64": 64}  # tokens of an adapter's job, by the sizes that its tiles have


class BadTiles(NoBackend):
    """A table of tiles that cannot be used. The message names the file and says what is wrong with it."""


def faults(arch: str, kernels: Any) -> Iterator[str]:
    """What is wrong with the part of a table that is for `arch`."""
    if not isinstance(kernels, dict):
        yield f"{arch} is no object of kernels"
        return
    if strange := sorted(set(kernels) - set(BLOCKS)):
        yield f"{arch} has tiles for kernels that there are not: {', '.join(strange)}"
    for kernel in BLOCKS:
        rows = kernels.get(kernel)
        if not isinstance(rows, dict) or ANY not in rows:
            yield f'{arch} has no tile "{ANY}" for {kernel}'
            continue
        for size, row in rows.items():
            yield from (f"{arch}, {kernel}, {size}: {fault}" for fault in _row_faults(kernel, size, row))
    yield from _joint_faults(arch, kernels)


def _row_faults(kernel: str, size: str, row: Any) -> Iterator[str]:
    limits = {**BLOCKS[kernel], "warps": WARPS, "stages": STAGES}
    if not isinstance(row, dict) or set(row) != set(limits):
        yield f"a tile has {', '.join(limits)}, not {row!r}"
        return
    for name, (least, most) in limits.items():
        value = row[name]
        if type(value) is not int or not least <= value <= most:
            yield f"{name} is from {least} to {most}, not {value!r}"
        elif name != "stages" and value & (value - 1):
            yield f"{name} is a power of two, not {value}"
    if size != ANY and not size.isdecimal():
        yield "a size is a number"
    if kernel.startswith("lora.") and row["BLOCK_M"] != _JOB.get(size):
        yield f"BLOCK_M is the tokens of a job, of which there are {', '.join(map(str, _JOB.values()))}"


def _joint_faults(arch: str, kernels: Mapping[str, Any]) -> Iterator[str]:
    """Both tiles of the product sum in the same steps: which of them runs depends on the batch."""
    steps = [_of(kernels, kernel, "BLOCK_K") for kernel in ("matmul.few", "matmul.many")]
    if steps[0] != steps[1]:
        yield f"{arch}: BLOCK_K of matmul.few and matmul.many differ"
    for kernel in ("lora.shrink", "lora.expand"):
        if _of(kernels, kernel, "BLOCK_M", "64") is None:
            yield f'{arch} has no tile "64" for {kernel}'


def _of(kernels: Mapping[str, Any], kernel: str, block: str, size: str = ANY) -> Any:
    rows = kernels.get(kernel)
    row = rows.get(size) if isinstance(rows, dict) else None
    return row.get(block) if isinstance(row, dict) else None
