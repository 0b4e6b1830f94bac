"""From a configuration to a model in memory. Slow, and blocks: it runs beside the event loop.

Nothing here imports torch before `load` is called: the number of its threads is set in the environment that it reads when imported.
"""

import logging
import os
import uuid
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from shared import config as settings
from shared.hashing import BLOCK_SIZE
from shared.tokenizer import TokenizerFilesError
from shared.types import WorkerInfo
from worker import auto
from worker.adapters.version import AdapterParts
from worker.assemble import Parts
from worker.config import WorkerConfig
from worker.execution.config import Dtype, RunnerConfig
from worker.plan import Executor
from worker.scheduler.config import SchedulerConfig
from worker.scheduler.fit import fit
from worker.scheduler.steptime import StepShape, StepTimes
from worker.sources.cache import cache_directory
from worker.step_store import Place, StepStore, cpu_name
from worker.warmup import Limits, WarmUp

if TYPE_CHECKING:
    from worker.execution.build import Runner
    from worker.sources.open import Source

_LOG = logging.getLogger("octavo.worker")


class LoadFailed(Exception):
    """The model cannot be served. The message is for whoever started the worker."""


def set_threads(config: WorkerConfig, environ: MutableMapping[str, str]) -> int:
    """The number of threads, told to OpenMP as well unless the environment already says how many.

    Threads that wait sleep: the router and the event loop run on the same cores, and one that spins there stops a whole step.
    """
    affinity, quota = auto.cores()
    threads = auto.threads(config.threads, affinity=affinity, quota=quota)
    if threads < config.threads:
        _LOG.warning("%d threads compute instead of %d: this process may run on no more cores", threads, config.threads)
    environ.setdefault("OMP_NUM_THREADS", str(threads))
    environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return threads


def load(config: WorkerConfig) -> Parts:
    """Raises LoadFailed for whatever is wrong with the model, does not fit, or cannot be computed as asked for."""
    threads = set_threads(config, os.environ)
    from kernels.errors import NoBackend
    from worker.execution.build import InsufficientMemory, ModelError
    from worker.sources.errors import SourceError

    try:
        return _load(config, threads)
    except (SourceError, ModelError, InsufficientMemory, TokenizerFilesError, NoBackend) as error:
        raise LoadFailed(str(error)) from error
    except MemoryError as error:
        raise LoadFailed(f"there is not enough memory: {error}") from error


def _load(config: WorkerConfig, threads: int) -> Parts:
    import torch

    from worker.execution.build import build
    from worker.sources.open import open_checkpoint

    _LOG.info("opening %s", config.model)
    source = open_checkpoint(config.model)
    gpu = config.backend in ("auto", "triton") and torch.cuda.is_available()
    dtype = auto.dtype(config.dtype, source.checkpoint.config.get("dtype"), gpu=gpu)
    runner = build(source.checkpoint, _runner_config(config, dtype, threads), progress())
    info = _info(config, runner, source)
    _LOG.info(
        "%s in %s on %d threads: %d KV blocks (%d MiB), %d tokens of context",
        info.model, dtype, threads, info.total_blocks, runner.kv_bytes >> 20, info.max_model_len,
    )  # fmt: skip
    place = Place(numerics_id=info.numerics_id, threads=threads, cpu=cpu_name())
    store = StepStore(cache_directory(), place)
    times = _step_times(config, info, runner, store)

    def close() -> None:
        runner.close()
        if config.step_sweep != "never":
            store.save(times)

    return Parts(
        executor=runner,
        scheduler=_scheduler(config, info, runner.depth),
        info=info,
        tokenizer=source.tokenizer,
        times=times,
        adapters=_adapters(config, runner, source),
        close=close,
    )


def _runner_config(config: WorkerConfig, dtype: Dtype, threads: int) -> RunnerConfig:
    return RunnerConfig(
        dtype=dtype,
        max_running=config.max_running,
        step_tokens=config.step_tokens,
        max_model_len=config.max_model_len,
        kv_bytes=None if config.kv_memory == "auto" else config.kv_memory,
        memory_share=config.memory_share,
        threads=threads,
        depth=auto.depth(config.depth),
        deterministic=config.deterministic,
        backend=config.backend,
        graphs=config.gpu_graphs,
        torch_compile=config.torch_compile,
        cpu_isa=config.cpu_isa,
        adapter_slots=config.max_adapters,
        max_adapter_rank=config.max_adapter_rank,
    )


def _info(config: WorkerConfig, runner: "Runner", source: "Source") -> WorkerInfo:
    return WorkerInfo(
        worker_id=uuid.uuid4().hex,
        model=auto.served_name(config.served_name, config.model),
        model_revision=source.checkpoint.revision,
        tokenizer_digest=source.tokenizer.digest,
        numerics_id=runner.numerics_id,
        max_model_len=runner.max_model_len,
        vocab_size=runner.vocab_size,
        block_size=BLOCK_SIZE,
        total_blocks=runner.num_blocks,
        max_running=config.max_running,
        eos_token_ids=_ends(source.checkpoint.eos_token_ids, runner.vocab_size),
        version=settings.version(),
        max_adapters=config.max_adapters,
        max_adapter_rank=config.max_adapter_rank if config.max_adapters else 0,
    )


def _adapters(config: WorkerConfig, runner: "Runner", source: "Source") -> AdapterParts | None:
    """Adapters are read and packed on one thread each, so that most of the machine is left to the steps."""
    import torch

    from worker.adapters.modules import base_model
    from worker.adapters.peft import read

    device = runner.adapters
    if device is None:
        return None
    base = base_model(source.checkpoint, device.shapes, max_rank=device.max_rank)
    return AdapterParts(
        slots=device.slots,
        host_bytes=config.adapter_host_bytes,
        read=lambda directory, most: read(directory, base, most),
        device=device,
        directory=Path(config.adapter_dir) if config.adapter_dir else None,
        prepare=lambda: torch.set_num_threads(1),
    )


def _ends(tokens: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """Those that can be drawn; some models' files name others, too."""
    beyond = [token for token in tokens if token >= vocab_size]
    if beyond:
        _LOG.warning("end tokens beyond the vocabulary of %d are left out: %s", vocab_size, beyond[:10])
    return tuple(token for token in tokens if token < vocab_size)


def _step_times(config: WorkerConfig, info: WorkerInfo, executor: Executor, store: StepStore) -> StepTimes:
    """Warms up. What is cached goes before what is measured. What rests on one step alone is not cached: it would pass for a sweep."""
    limits = Limits(
        step_tokens=config.step_tokens,
        slots=config.max_running,
        blocks=info.total_blocks,
        max_model_len=info.max_model_len,
    )
    warm_up = WarmUp(executor, limits)
    first = warm_up.full_step()
    if config.step_sweep == "never":
        return fit([first])
    known = store.load() if config.step_sweep == "auto" else None
    if known is not None:
        return known
    steps = warm_up.sweep(first)
    times = fit(steps)
    _LOG.info(
        "timed %d steps: one decode %.1f ms, %d tokens of a prompt %.0f ms",
        len(steps), 1000 * times.predict(StepShape(1, 1, 1)), first.shape.rows, 1000 * times.predict(first.shape),
    )  # fmt: skip
    if len(steps) > 1:
        store.save(times)
    return times


def _scheduler(config: WorkerConfig, info: WorkerInfo, depth: int) -> SchedulerConfig:
    return SchedulerConfig(
        max_running=config.max_running,
        step_tokens=config.step_tokens,
        max_model_len=info.max_model_len,
        vocab_size=info.vocab_size,
        model_revision=info.model_revision,
        eos_token_ids=info.eos_token_ids,
        max_waiting=config.max_waiting,
        max_waiting_per_tenant=config.max_waiting_per_tenant or config.max_waiting,
        prefix_cache=config.prefix_cache,
        depth=depth,
        max_adapters=config.max_adapters,
        target_itl_s=auto.target_itl(config.target_itl_ms),
    )


def progress(tenths: int = 10) -> Callable[[int, int], None]:
    """Logs each tenth of the layers."""
    told = 0

    def tell(done: int, total: int) -> None:
        nonlocal told
        part = tenths * done // total
        if part > told:
            told = part
            _LOG.info("loaded %d of %d layers", done, total)

    return tell
