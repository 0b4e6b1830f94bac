"""Checks the GPU backend on the GPU that is there, then measures it: `python tests/bench/gpu_check.py [--dry] [--parts A,B] [--out FILE]`.

Parts run in order of importance; each is kept in FILE as it ends, and a further run takes up the rest, so that a short lease does the most
important first. `--dry` runs every part at toy sizes on a CPU, in Triton's interpreter: its figures mean nothing. Reads nothing outside the
repository, and needs torch, triton, safetensors, transformers and numpy.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
if "--dry" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported

import numpy as np  # noqa: E402
import torch  # noqa: E402

from kernels.attention.spec import AttentionSpec  # noqa: E402
from kernels.attention.triton import attention  # noqa: E402
from kernels.backend import Backend, backend  # noqa: E402
from kernels.gpu.launch import Launcher  # noqa: E402
from kernels.gpu.step import device_step, host_step  # noqa: E402
from kernels.kv.triton import GpuKVPool  # noqa: E402
from kernels.lora.triton import LoraStack, LoraStep, apply, jobs  # noqa: E402
from kernels.mlp.triton import gated  # noqa: E402
from kernels.prepare.reference import Batch  # noqa: E402
from kernels.rms_norm.triton import add_rms_norm  # noqa: E402
from kernels.rotary.table import rotary_table  # noqa: E402
from kernels.sample.reference import Draw  # noqa: E402
from kernels.sample.reference import sample as reference_sample  # noqa: E402
from kernels.sample.triton import greedy, sample  # noqa: E402
from kernels.weights import Norm  # noqa: E402
from worker.models.decoder import load  # noqa: E402

Tensor = torch.Tensor
Rows = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Bed:
    """Where all is run, and at what sizes."""

    launch: Launcher
    dry: bool

    @property
    def device(self) -> torch.device:
        return self.launch.device

    def seconds(self, run: Callable[[], object]) -> float:
        """The median of one run's time, with a cold L2; on a CPU one run, whose time means nothing."""
        run()
        if self.dry:
            start = time.perf_counter()
            run()
            return time.perf_counter() - start
        flush = torch.empty(256 << 20, dtype=torch.int8, device=self.device)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):  # what a launch costs the host is not the kernel's
            run()
        times = []
        for _ in range(15):
            flush.zero_()
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            graph.replay()
            last.record()
            torch.cuda.synchronize()
            times.append(first.elapsed_time(last) / 1e3)
        return float(np.median(times))

    def drawn(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(*shape, device=self.device, dtype=torch.float32).to(dtype)

    def copy_rate(self) -> float:
        """Bytes a second that a copy reads and writes: the ceiling of what only moves memory."""
        x = torch.empty((1 << 12) if self.dry else (1 << 30), dtype=torch.int8, device=self.device)
        y = torch.empty_like(x)
        return 2 * x.numel() / self.seconds(lambda: y.copy_(x))

    def product_rate(self) -> float:
        """Operations a second of a large product in bfloat16."""
        n = 64 if self.dry else 8192
        x, y = self.drawn(n, n), self.drawn(n, n)
        return 2 * n**3 / self.seconds(lambda: x @ y)


class State:
    """transformers' model as a worker.models.checkpoint.Checkpoint."""

    def __init__(self, model: Any):
        self._tensors = model.state_dict()
        self.config, self.revision, self.eos_token_ids = model.config.to_dict(), "random", ()

    def names(self) -> Any:
        return self._tensors.keys()

    def tensor(self, name: str) -> Tensor:
        return self._tensors[name]


class Text:
    """One model on one backend, with sequences that grow together: `step` computes what it is given and tells each one's logits."""

    def __init__(self, model: Any, ops: Backend, dtype: torch.dtype, *, sequences: int, length: int):
        self.ops, self.decoder = ops, load(State(model), dtype, ops, invariant=False)
        spec, self.width = self.decoder.spec, -(-length // 16)
        one = spec.attention[0]
        self.pool = ops.kv_pool(
            layers=spec.layers, kv_heads=one.kv_heads, head_dim=one.head_dim, blocks=sequences * self.width, dtype=dtype
        )
        self.rotaries = tuple(rotary_table(rotary, length) for rotary in spec.rotaries)
        self.tables = torch.arange(sequences * self.width).view(sequences, self.width)

    def prepared(self, start: int, count: int) -> Any:
        n = len(self.tables)
        batch = Batch(starts=np.full(n, start), lengths=np.full(n, count), tables=self.tables)
        return self.ops.prepare(batch, self.pool, self.rotaries, self.decoder.spec.attentions)

    def step(self, tokens: Tensor, prepared: Any) -> Tensor:
        """tokens int64 [sequences, count] -> logits float32 [sequences, vocabulary] of the last ones."""
        hidden = self.decoder.forward(tokens.reshape(-1), prepared, self.pool)
        last = torch.arange(1, len(tokens) + 1, device=hidden.device) * tokens.shape[1] - 1
        return self.decoder.logits(hidden, last, prepared)


def llama(bed: Bed, **sizes: int) -> Any:
    """A random Llama on the device."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(**sizes, max_position_embeddings=8192, rope_theta=5e5, tie_word_embeddings=False)
    with torch.device(bed.device):
        return LlamaForCausalLM(config).eval()


SMALL = {
    "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 5, "num_attention_heads": 8, "num_key_value_heads": 4,
    "vocab_size": 512,
}  # fmt: skip
BILLION = {
    "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256,
}  # fmt: skip
EIGHT = {
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256,
}  # fmt: skip


def check_equality(bed: Bed) -> Rows:
    """Greedy tokens of float32 models are transformers', token for token."""
    rows = []
    for name, sizes in (("stories260K-size", SMALL), ("1B-shaped", BILLION)):
        if bed.dry and sizes is BILLION:
            sizes = {**SMALL, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}  # noqa: PLW2901
        model, count = llama(bed, **sizes), 3 if bed.dry else 32
        prompt = torch.randint(0, sizes["vocab_size"], (1, 17), device=bed.device)
        text = Text(model, backend("triton", deterministic=False), torch.float32, sequences=1, length=64)
        tokens, want = prompt, model.generate(prompt, do_sample=False, max_new_tokens=count, min_new_tokens=count)
        logits, made = text.step(tokens, text.prepared(0, 17)), []
        for position in range(17, 17 + count):
            made.append(int(text.ops.greedy(logits)))
            logits = text.step(torch.tensor([[made[-1]]], device=bed.device), text.prepared(position, 1))
        rows.append({"model": name, "tokens": count, "equal": made == want[0, 17:].tolist()})
    return rows


def check_kernels(bed: Bed) -> Rows:
    """Attention against float64, and drawn tokens against the reference's."""
    rows = []
    for dim, heads, kv_heads in ((64, 4, 1), (80, 2, 2), (96, 4, 2), (128, 7, 1), (256, 8, 1))[: 1 if bed.dry else 5]:
        spec = AttentionSpec(heads=heads, kv_heads=kv_heads, head_dim=dim, scale=0.1)
        for chunks in (((63, 1), (20, 1)), ((0, 1), (63, 5))):
            for fixed in (False, True):
                rows.append(_attention_error(bed, spec, chunks, fixed))  # noqa: PERF401
    logits, n = bed.drawn(4, 3000, dtype=torch.float32) * 3, 4
    whole = {name: torch.arange(n, device=bed.device) for name in ("seed_low", "seed_high", "position", "choice")}
    draw = Draw(
        temperature=torch.ones(n, device=bed.device), top_k=torch.full((n,), 50, device=bed.device),
        top_p=torch.full((n,), 0.9, device=bed.device), min_p=torch.zeros(n, device=bed.device), **whole,
    )  # fmt: skip
    equal = torch.equal(sample(bed.launch, logits, draw), reference_sample(logits.clone(), draw))
    return [*rows, {"kernel": "sample", "equal": equal}]


def _attention_error(bed: Bed, spec: AttentionSpec, chunks: tuple[tuple[int, int], ...], fixed: bool) -> dict[str, Any]:
    run, q, pool, tables = _attention(bed, spec, chunks, fixed=fixed)
    got, first, worst = run().double(), 0, 0.0
    k, v = (one[tables.to(bed.device)].transpose(2, 3).flatten(1, 2).double() for one in pool.layer(0))
    for row, (start, count) in enumerate(chunks):
        end = start + count
        own_k, own_v = (x[row, :end].repeat_interleave(spec.heads // spec.kv_heads, 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q[first : first + count].double(), own_k) * spec.scale
        hidden = torch.arange(end) > start + torch.arange(count)[:, None]
        p = scores.masked_fill(hidden.to(bed.device), -torch.inf).softmax(-1)
        want = torch.einsum("hqk,khd->qhd", p, own_v).flatten(1)
        worst = max(worst, float((got[first : first + count] - want).abs().max() / want.abs().max()))
        first += count
    return {"kernel": "attention", "head_dim": spec.head_dim, "fixed": fixed, "off": worst, "equal": worst < 0.02}


def _attention(
    bed: Bed, spec: AttentionSpec, chunks: tuple[tuple[int, int], ...], *, fixed: bool = False
) -> tuple[Callable[[], Tensor], Tensor, GpuKVPool, Tensor]:
    starts, lengths = np.array(chunks, dtype=np.int64).T.copy()
    width = -(-int((starts + lengths).max()) // 16)
    tables = torch.randperm(width * len(chunks)).view(len(chunks), width)
    pool = GpuKVPool(bed.drawn(1, 2, tables.numel(), spec.kv_heads, 16, spec.head_dim))
    batch = Batch(starts=starts, lengths=lengths, tables=tables)
    host = host_step(bed.launch, batch, pool, (spec,), fixed=fixed)
    step = device_step(host, torch.from_numpy(host.flat()).to(bed.device), (), fixed=fixed).attention
    q = bed.drawn(int(lengths.sum()), spec.heads, spec.head_dim)
    return lambda: attention(bed.launch, q, step, pool, 0, spec, fixed=fixed), q, pool, tables


def decode(bed: Bed) -> Rows:
    """Decode attention as a share of copy bandwidth; aim 80 % from batch 16 and 4k on. Fixed splits beside."""
    heads, kv_heads, dim = (4, 1, 64) if bed.dry else (32, 8, 128)
    spec, rate, rows = AttentionSpec(heads=heads, kv_heads=kv_heads, head_dim=dim, scale=dim**-0.5), bed.copy_rate(), []
    sizes = [(2, 40)] if bed.dry else [(b, c) for c in (4096, 512, 32768) for b in (16, 64, 256, 1)]
    for count, context in sizes:
        if count * context > 1 << 22:
            count = (1 << 22) // context  # noqa: PLW2901 (random KV is made in float32: it must fit beside itself)
        for fixed in (False, True):
            run, q, _, _ = _attention(bed, spec, ((context - 1, 1),) * count, fixed=fixed)
            seconds, moved = bed.seconds(run), 4 * kv_heads * dim * count * context + 4 * q.numel()
            rows.append(
                {
                    "batch": count,
                    "context": context,
                    "fixed": fixed,
                    "us": 1e6 * seconds,
                    "of_copy": moved / seconds / rate,
                }
            )
    return rows


def prefill(bed: Bed) -> Rows:
    """Prefill attention against torch's SDPA and the matmul peak; aim 70 % of SDPA flash."""
    heads, kv_heads, dim = (4, 1, 64) if bed.dry else (32, 8, 128)
    spec, peak, rows = (
        AttentionSpec(heads=heads, kv_heads=kv_heads, head_dim=dim, scale=dim**-0.5),
        bed.product_rate(),
        [],
    )
    for count in (40,) if bed.dry else (2048, 8192):
        run, _, _, _ = _attention(bed, spec, ((0, count),))
        ours, operations = bed.seconds(run), 2 * count * count * heads * dim
        q_, k, v = (bed.drawn(1, heads, count, dim) for _ in range(3))
        theirs = bed.seconds(lambda: torch.nn.functional.scaled_dot_product_attention(q_, k, v, is_causal=True))  # noqa: B023
        rows.append(
            {"tokens": count, "us": 1e6 * ours, "of_sdpa": theirs / ours, "of_matmul_peak": operations / ours / peak}
        )
    return rows


def rows_(bed: Bed) -> Rows:
    """Norm and activation as a share of copy bandwidth."""
    tokens, hidden = (2, 64) if bed.dry else (8192, 4096)
    rate, x, y = bed.copy_rate(), bed.drawn(tokens, hidden, dtype=torch.float32), bed.drawn(tokens, hidden)
    norm, both = Norm(weight=torch.ones(hidden, device=bed.device), eps=1e-5), bed.drawn(tokens, 2 * hidden)
    runs = {
        "add_rms_norm": (lambda: add_rms_norm(bed.launch, x, y, None, norm, torch.bfloat16), 12 * x.numel()),
        "gated": (lambda: gated(bed.launch, both, "silu"), 3 * both.numel()),
    }
    return [{"kernel": name, "of_copy": moved / bed.seconds(run) / rate} for name, (run, moved) in runs.items()]


def sampler(bed: Bed) -> Rows:
    """Greedy and drawn tokens at vocabulary 128k."""
    found = []
    for rows in (2,) if bed.dry else (1, 32, 256):
        logits = bed.drawn(rows, 1500 if bed.dry else 128256, dtype=torch.float32)
        whole = {
            name: torch.arange(rows, device=bed.device) for name in ("seed_low", "seed_high", "position", "choice")
        }
        found.append({"rows": rows, "kind": "greedy", "us": 1e6 * bed.seconds(lambda: greedy(bed.launch, logits))})  # noqa: B023
        for kind, k, p in (("temperature", 0, 1.0), ("top_k 50", 50, 1.0), ("top_p 0.9", 0, 0.9)):
            draw = Draw(
                temperature=torch.ones(rows, device=bed.device), top_k=torch.full((rows,), k, device=bed.device),
                top_p=torch.full((rows,), p, device=bed.device), min_p=torch.zeros(rows, device=bed.device), **whole,
            )  # fmt: skip
            found.append(
                {"rows": rows, "kind": kind, "us": 1e6 * bed.seconds(lambda: sample(bed.launch, logits, draw))}  # noqa: B023
            )
    return found


def lora(bed: Bed) -> Rows:
    """A projection's adapters beside the projection itself: 64 tokens, ranks 8 to 64, of 1, 8 and 64 adapters."""
    k, n, tokens = (64, 64, 4) if bed.dry else (4096, 6144, 64)
    x, weight, out, rows = bed.drawn(tokens, k), bed.drawn(n, k), bed.drawn(tokens, n), []
    base = bed.seconds(lambda: torch.nn.functional.linear(x, weight))
    for rank in (8,) if bed.dry else (8, 16, 32, 64):
        for count in (2,) if bed.dry else (1, 8, 64):
            stack = LoraStack.empty((n,), k, slots=count, max_rank=rank, dtype=torch.bfloat16, device=bed.device)
            for slot in range(count):
                stack.put(slot, 0, bed.drawn(rank, k), bed.drawn(n, rank), 1.0)
            order, made, height = jobs(np.arange(tokens) % count)
            parts = (order, (order % count).astype(np.int32), made)
            order_, slots, jobs_ = (torch.from_numpy(part).to(bed.device) for part in parts)
            step = LoraStep(order=order_, slots=slots, jobs=jobs_, rows=height)
            seconds = bed.seconds(lambda: apply(bed.launch, x, stack, step, out))  # noqa: B023
            rows.append({"rank": rank, "adapters": count, "us": 1e6 * seconds, "of_base": seconds / base})
    return rows


def end_to_end(bed: Bed) -> Rows:
    """Decode steps of a Llama-3-8B-shaped random model against the bandwidth of weights and KV; graphs on and off, deterministic or not."""
    sizes, context, rate, found = SMALL if bed.dry else EIGHT, 20 if bed.dry else 1024, bed.copy_rate(), []
    torch.set_default_dtype(torch.float32 if bed.dry else torch.bfloat16)
    model = llama(bed, **sizes)
    torch.set_default_dtype(torch.float32)
    weights = sum(p.numel() for name, p in model.named_parameters() if "embed" not in name) * 2
    for deterministic in (False, True):
        for count in (1,) if bed.dry else (1, 32, 256):
            ops = backend("triton", deterministic=deterministic)
            text = Text(model, ops, torch.bfloat16, sequences=count, length=context + 1)
            text.pool.fill(0.0)
            tokens, step = torch.zeros(count, 1, dtype=torch.int64, device=bed.device), text.prepared(context, 1)
            run = lambda: ops.greedy(text.step(tokens, step))  # noqa: B023, E731
            graphed, eager, one = bed.seconds(run), _eager(bed, run), text.decoder.spec.attention[0]
            kv = 4 * one.kv_heads * one.head_dim * text.decoder.spec.layers * count * context
            found.append({
                "batch": count, "deterministic": deterministic, "tokens_s": count / graphed, "tokens_s_eager": count / eager,
                "of_bound": (weights + kv) / rate / graphed,
            })  # fmt: skip
    return [*found, *(_theirs(bed, model, count, context) for count in ((1,) if bed.dry else (1, 32)))]


def _eager(bed: Bed, run: Callable[[], object]) -> float:
    count = 1 if bed.dry else 10
    start = time.perf_counter()
    for _ in range(count):
        run()
    if not bed.dry:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / count


def _theirs(bed: Bed, model: Any, count: int, context: int) -> dict[str, Any]:
    """transformers' generate: the difference of two lengths, so that the prefill does not count."""
    prompt, times = torch.zeros(count, context, dtype=torch.int64, device=bed.device), []
    for new in (1, 3 if bed.dry else 33):
        start = time.perf_counter()
        model.generate(prompt, do_sample=False, max_new_tokens=new, min_new_tokens=new)[0, -1].item()
        times.append(time.perf_counter() - start)
    return {"batch": count, "transformers_tokens_s": count * (2 if bed.dry else 32) / (times[1] - times[0])}


PARTS: dict[str, Callable[[Bed], Rows]] = {
    "kernels": check_kernels, "equality": check_equality, "decode": decode, "end_to_end": end_to_end, "prefill": prefill, "lora": lora,
    "sampler": sampler, "rows": rows_,
}  # fmt: skip


def main() -> int:
    """Exit status: 1 where a check failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.dry:
        from tests.kernels import triton_by_value

        triton_by_value.install()
    out, launch = options.out, Launcher.present()
    done: dict[str, Any] = json.loads(out.read_text()) if out and out.exists() else {}
    done.setdefault("machine", {"gpu": launch.arch.name, "torch": torch.__version__, "dry": options.dry})
    for name in options.parts.split(","):
        if name not in done:
            start = time.perf_counter()
            with torch.inference_mode():
                done[name] = PARTS[name](Bed(launch=launch, dry=options.dry))
            print(json.dumps({"part": name, "seconds": time.perf_counter() - start, "rows": done[name]}), flush=True)  # noqa: T201
            if out:
                out.write_text(json.dumps(done, indent=1), encoding="utf-8")
    wrong = [row for part in ("kernels", "equality") for row in done.get(part, []) if not row["equal"]]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
