"""Which implementation of each op runs: one table a backend, chosen by name."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from kernels.attention.reference import attention
from kernels.attention.spec import AttentionSpec
from kernels.attn_in.reference import attn_in
from kernels.attn_out.reference import attn_out
from kernels.cpu import build, isa
from kernels.cpu.engine import Engine, Forbidden, UnusableLibrary
from kernels.cpu.ops import CpuOps
from kernels.embed.reference import embed
from kernels.errors import NotOffered
from kernels.kv import KVPool
from kernels.kv import block_bytes as reference_block_bytes
from kernels.kv.cpu import block_bytes as cpu_block_bytes
from kernels.layers.reference import layers
from kernels.linear import pack
from kernels.logits.changes import LogitKernels
from kernels.logits.reference import logits
from kernels.lora.reference import ReferenceSlots
from kernels.lora.slots import AdapterSlots
from kernels.mlp.reference import mlp
from kernels.prepare.reference import Batch, prepare
from kernels.prepare.staged import Stage, staged_by
from kernels.rotary.table import RotaryTable
from kernels.sample.reference import Draw, finite, greedy, sample
from kernels.weights import AttnIn, Layer, Packed

if TYPE_CHECKING:
    from kernels.gpu.ops import TritonOps  # imported where it is chosen: Triton may not be installed elsewhere

Tensor = torch.Tensor
# Opaque outside the kernels: what a backend's `kv_pool` and `prepare` make, its other ops take. A pool has `blocks`,
# `copy_blocks`, `export`, `import_` and `fill`, as kernels.kv.KVPool describes them.
Pool = Any
Prepared = Any
_LOG = logging.getLogger("octavo.kernels")


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """The ops that models and the sampler call. The references hold their contracts; an op may change its `x` in place.

    embed, attn_out, mlp and logits take the step's `prepare`d state last, for its adapters, and attn_out and mlp the
    layer's number; without them they run on the base model alone. `adapter_slots(shapes, slots=, max_rank=, dtype=)`
    makes what kernels.lora.slots.BatchAdapters names.

    `layers` runs all layers: attn_in, attention, attn_out and mlp in turn, or something that equals it. `numerics`
    changes whenever an op may give other bits; it is part of a worker's numerics_id. `library_threads` is how many
    threads torch's own operators should use beside the ops. `stage` is `prepare` in two parts, for devices that compute
    behind the host; `device` is where the ops' tensors lie. `logit_kernels` change logits there without a look at any
    value; None: plain operators (kernels.sample.adjust) do.
    """

    name: str
    numerics: str
    library_threads: int
    device: torch.device
    pack: Callable[..., Packed]
    kv_pool: Callable[..., Pool]
    block_bytes: Callable[..., int]
    prepare: Callable[[Batch, Pool, tuple[RotaryTable, ...], tuple[AttentionSpec, ...]], Prepared]
    stage: Stage
    adapter_slots: Callable[..., AdapterSlots]
    embed: Callable[..., Tensor]
    attn_in: Callable[[Tensor, AttnIn, Prepared, Pool, int], Tensor]
    attention: Callable[[Tensor, Prepared, Pool, int, AttentionSpec], Tensor]
    attn_out: Callable[..., Tensor]
    mlp: Callable[..., Tensor]
    layers: Callable[[Tensor, tuple[Layer, ...], Prepared, Pool], Tensor]
    logits: Callable[..., Tensor]
    finite: Callable[[Tensor], Tensor]
    greedy: Callable[[Tensor], Tensor]
    sample: Callable[[Tensor, Draw], Tensor]
    logit_kernels: LogitKernels | None = None


def backend(
    name: str = "reference",
    *,
    threads: int = 1,
    isa: str = "auto",
    deterministic: bool = True,
    torch_compile: bool = False,
) -> Backend:
    """The backend of that name: `cpu` (compiled at first use), `reference` (plain PyTorch), `triton` (a GPU, or Triton's
    interpreter), or `auto`: `triton` where there is a GPU, else `cpu`, else `reference`.

    `isa` limits the instructions that compiled CPU kernels may use (see kernels.cpu.isa). `deterministic`: a row's result
    depends on no other row; on a CPU that is so in any case, as far as `pack` is told the same. `torch_compile`: projections and MLPs of
    `triton` go through torch.compile (kernels.linear.compiled), which leaves sums free.

    Raises NoBackend: NotOffered lists what there is, or what goes together; kernels.cpu.build.NoCompiler or UnusableLibrary
    tell why `cpu` cannot be had, kernels.gpu.arch.NoGpu and kernels.gpu.tile_rules.BadTiles why `triton` cannot,
    kernels.linear.compiled.CannotCompile why torch.compile cannot.
    """
    if torch_compile and deterministic:
        raise NotOffered("torch.compile picks products by their rows, which deterministic forbids")
    if name == "triton" or (name == "auto" and torch.cuda.is_available()):
        return _triton(deterministic, torch_compile=torch_compile)
    if torch_compile:
        raise NotOffered(f"torch.compile is for the backend triton, not for {name}")
    makers = {"auto": _auto, "cpu": _cpu, "reference": _reference}
    if name not in makers:
        raise NotOffered(f"no kernel backend {name!r}; there are: {', '.join([*makers, 'triton'])}")
    return makers[name](threads, isa)


def _auto(threads: int, wanted: str) -> Backend:
    try:
        return _cpu(threads, wanted)
    except (build.NoCompiler, UnusableLibrary) as error:
        _LOG.warning("the compiled CPU kernels cannot be used, slower ones run instead: %s", error)
        return _reference(threads, wanted)


def _cpu(threads: int, wanted: str) -> Backend:
    engine = _engine(threads, wanted)
    ops = CpuOps(engine)
    return _table(ops, name="cpu", numerics=f"{engine.level}-{engine.build}", block_bytes=cpu_block_bytes)


def _triton(deterministic: bool, *, torch_compile: bool) -> Backend:
    from kernels.gpu.launch import Launcher  # only where a GPU is chosen: Triton may not be installed elsewhere
    from kernels.gpu.logits import TritonLogits
    from kernels.gpu.ops import TritonOps
    from kernels.kv.triton import block_bytes as gpu_block_bytes
    from kernels.linear.compiled import Compiled

    launch = Launcher.present(exact=deterministic)
    ops = TritonOps(launch, fixed=deterministic, compiled=Compiled(launch.device) if torch_compile else None)
    sums = "fixed" if deterministic else "compiled" if torch_compile else "free"
    numerics = f"{launch.arch.name}-{launch.tiles.digest}-{sums}"
    return replace(
        _table(ops, name="triton", numerics=numerics, block_bytes=gpu_block_bytes), logit_kernels=TritonLogits(launch)
    )


def _table(ops: "CpuOps | TritonOps", *, name: str, numerics: str, block_bytes: Callable[..., int]) -> Backend:
    """Every op of a backend that is one object."""
    return Backend(
        name=name,
        numerics=numerics,
        library_threads=1,
        device=ops.device,
        pack=ops.pack,
        kv_pool=ops.kv_pool,
        block_bytes=block_bytes,
        prepare=ops.prepare,
        stage=ops.stage,
        adapter_slots=ops.adapter_slots,
        embed=ops.embed,
        attn_in=ops.attn_in,
        attention=ops.attention,
        attn_out=ops.attn_out,
        mlp=ops.mlp,
        layers=ops.layers,
        logits=ops.logits,
        finite=ops.finite,
        greedy=ops.greedy,
        sample=ops.sample,
    )


def _engine(threads: int, wanted: str) -> Engine:
    """With the best instructions that the compiler and the system let this process use, where none are asked for by name."""
    best = isa.choose(wanted)
    for level in isa.levels()[:-1] if wanted == "auto" else ():
        try:
            return Engine(build.library(level), level, threads)
        except (build.CompilerFailed, Forbidden) as error:
            _LOG.warning("kernels for %s cannot be used, the next best are tried: %s", level, error)
            best = "generic"
    return Engine(build.library(best), best, threads)


def _reference(threads: int, _wanted: str) -> Backend:
    return Backend(
        name="reference",
        numerics=f"1-{threads}",  # libraries split sums by the number of threads
        library_threads=threads,
        device=torch.device("cpu"),
        pack=pack,
        kv_pool=KVPool.allocate,
        block_bytes=reference_block_bytes,
        prepare=prepare,
        stage=staged_by(prepare),
        adapter_slots=partial(ReferenceSlots, threads=threads),
        embed=embed,
        attn_in=attn_in,
        attention=attention,
        attn_out=attn_out,
        mlp=mlp,
        layers=layers,
        logits=logits,
        finite=finite,
        greedy=greedy,
        sample=sample,
    )
