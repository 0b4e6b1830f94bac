"""How large what is timed is."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Of a model, and of steps: `few` and `many` tokens, `most` of a large product or of one adapter, `prompt` tokens of one that is long,
    `batch` sequences of `context` positions that decode. `dims` are the head sizes by the table's own.
    """

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    vocabulary: int
    few: int
    many: int
    most: int
    prompt: int
    batch: int
    context: int
    rank: int
    slots: int
    dims: dict[str, int]


LLAMA = Sizes(  # Llama 3 8B
    hidden=4096, inner=14336, heads=32, kv_heads=8, vocabulary=128_256, few=32, many=2048, most=2048, prompt=4096, batch=64,
    context=4096, rank=16, slots=8, dims={"*": 64, "128": 128, "256": 256},
)  # fmt: skip
