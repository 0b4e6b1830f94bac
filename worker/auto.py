"""What `auto` means. Pure functions, beside one that asks the system."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from worker.cgroups import groups, lines
from worker.execution.config import Dtype

_QUOTA_FILES = {1: ("cpu.cfs_quota_us", "cpu.cfs_period_us"), 2: ("cpu.max",)}
_ON_CPU: dict[str, Dtype] = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "float16": "bfloat16",  # CPUs multiply bfloat16; few multiply float16
}


def dtype(wanted: str, stored: object, *, gpu: bool = False) -> Dtype:
    """Of the computation, where `stored` is the checkpoint's own (None: not told). GPUs compute in what is stored."""
    if wanted == "auto" and gpu and str(stored).endswith("float16") and "bfloat16" not in str(stored):
        return "float16"
    if wanted == "auto":
        return _ON_CPU.get(str(stored).removeprefix("torch."), "float32")
    chosen: dict[str, Dtype] = {"float32": "float32", "bfloat16": "bfloat16", "float16": "float16"}
    return chosen[wanted]


def depth(wanted: str) -> int:
    """Steps that may be in flight when the next is planned."""
    return 0 if wanted == "auto" else int(wanted)


def target_itl(wanted: str | float) -> float | None:
    """Seconds that steps stay under; None leaves it to their decodes' own time, infinity stands for no target."""
    named: dict[str | float, float | None] = {"auto": None, "off": math.inf}
    return named[wanted] if isinstance(wanted, str) else wanted / 1000


def threads(wanted: int, *, affinity: int, quota: float | None) -> int:
    """That compute, where 0 is wanted: as many as cores are usable. Never more than cores: they wait for each other many times a step."""
    return min(wanted, affinity) or usable(affinity, quota)


def usable(affinity: int, quota: float | None) -> int:
    """Whole cores that a process really gets, at least one. `quota` is in cores, None without a limit."""
    return affinity if quota is None else max(1, min(affinity, int(quota)))


def served_name(wanted: str, model: str) -> str:
    """The model's name in the API: by default the last part of its path or id, without .gguf."""
    return wanted or model.rstrip("/").rpartition("/")[2].removesuffix(".gguf")


def parse_quota(cpu_max: str) -> float | None:
    """Cores, from a cgroup's cpu.max ("200000 100000"), or the two values of version 1 in this form; None without a limit."""
    limit, _, period = cpu_max.strip().partition(" ")
    return None if limit in ("max", "", "-1") else int(limit) / int(period)


def _quotas(root: Path) -> Iterator[float]:
    """Those of all control groups that this process is in, which hold together."""
    for group in groups("cpu", root):
        told = [lines(group.folder / name) for name in _QUOTA_FILES[group.version]]
        if all(told):
            with suppress(ValueError):  # a file of another layout tells no quota
                quota = parse_quota(" ".join(text[0].strip() for text in told))
                if quota is not None:
                    yield quota


def cores(root: Path = Path("/")) -> tuple[int, float | None]:
    """The cores that the process may run on, and its control groups' least quota in cores (None: no limit, or none to be read). `root`
    holds proc and sys."""
    return len(os.sched_getaffinity(0)), min(_quotas(root), default=None)
