"""Attention against the rates of the same run: decode against copies, prefill against torch's flash attention and large products."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

from torch.nn.functional import scaled_dot_product_attention

from kernels.attention.spec import AttentionSpec
from tests.bench.gpu.bed import Bed, Row
from tests.bench.gpu.check_attention import Chunks, step

BATCHES, CONTEXTS = (16, 64, 256, 1), (4096, 512, 32768)
_KV_SHARE = 0.8  # of free memory, that random KV may take
_DECODE_AIM, _PREFILL_AIM = 0.8, 0.7


def spec_of(bed: Bed) -> AttentionSpec:
    """As Llama 3 8B."""
    heads, kv_heads, dim = bed.size((4, 1, 64), (32, 8, 128))
    return AttentionSpec(heads=heads, kv_heads=kv_heads, head_dim=dim, scale=dim**-0.5)


def decode(bed: Bed) -> Iterator[Row]:
    """Each batch and context with splits free and fixed; the batch is cut where its KV does not fit, and says so."""
    rate = bed.copy_rate()
    for context in bed.size((40,), CONTEXTS):
        for asked in bed.size((2,), BATCHES):
            yield from (_decode(bed, asked, context, fixed, rate) for fixed in (False, True))


def fitting(asked: int, sequence_bytes: int, free: int) -> int:
    """How many sequences of the batch fit."""
    return max(1, min(asked, int(_KV_SHARE * free) // sequence_bytes))


def _decode(bed: Bed, asked: int, context: int, fixed: bool, rate: float) -> Row:
    spec = spec_of(bed)
    own = 4 * spec.kv_heads * spec.head_dim * context
    batch = fitting(asked, own, bed.free_bytes())
    made = step(bed, spec, ((context - 1, 1),) * batch, fixed=fixed)
    seconds, moved = bed.seconds(made.run), own * batch + 4 * batch * spec.heads * spec.head_dim
    aimed = asked >= 16 and context >= 4096 and not fixed
    return {
        "batch": batch,
        "context": context,
        "splits": "fixed" if fixed else "free",
        "clipped_from": asked if batch < asked else None,
        "us": 1e6 * seconds,
        "gb_s": moved / seconds / 1e9,
        "of_copy": moved / seconds / rate,
        "aim": _DECODE_AIM if aimed else None,
        "reached": moved / seconds / rate >= _DECODE_AIM if aimed else None,
    }


def prefill(bed: Bed) -> Iterator[Row]:
    """Whole prompts, some at a time, and a chunk at the end of a long one. SDPA computes the same heads, as a dense batch."""
    peak = bed.product_rate()
    for count, length, start in bed.size(((1, 40, 0),), ((1, 2048, 0), (1, 8192, 0), (8, 1024, 0), (1, 1024, 15360))):
        yield from (_prefill(bed, count, length, start, fixed, peak) for fixed in (False, True))


def _prefill(bed: Bed, count: int, length: int, start: int, fixed: bool, peak: float) -> Row:
    spec = spec_of(bed)
    chunks: Chunks = ((start, length),) * count
    seconds = bed.seconds(step(bed, spec, chunks, fixed=fixed).run)
    pairs = count * (length * start + length * (length + 1) // 2)
    rate = 4 * pairs * spec.heads * spec.head_dim / seconds
    theirs = bed.seconds(_flash(bed, spec, count, length)) if start == 0 else None
    aimed = theirs is not None and not fixed
    return {
        "prompts": count,
        "tokens": length,
        "start": start,
        "splits": "fixed" if fixed else "free",
        "us": 1e6 * seconds,
        "tflop_s": rate / 1e12,
        "of_matmul_peak": rate / peak,
        "of_sdpa": theirs / seconds if theirs else None,
        "aim": _PREFILL_AIM if aimed else None,
        "reached": theirs / seconds >= _PREFILL_AIM if theirs and aimed else None,
    }


def _flash(bed: Bed, spec: AttentionSpec, count: int, length: int) -> Callable[[], object]:
    q, k, v = (bed.drawn(count, spec.heads, length, spec.head_dim, seed=seed) for seed in range(3))

    def run() -> object:
        with _flash_alone(bed):
            return scaled_dot_product_attention(q, k, v, is_causal=True)

    return run


def _flash_alone(bed: Bed) -> AbstractContextManager[object]:
    """No other implementation than flash attention's; on CPU whatever there is."""
    if bed.dry:
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    found: AbstractContextManager[object] = sdpa_kernel(SDPBackend.FLASH_ATTENTION)
    return found
