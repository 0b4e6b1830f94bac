"""`octavo bench hf`: transformers' own `generate` on the same requests, one at a time. It measures; it serves nothing."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from octavo.bench import metrics
from octavo.bench.metrics import Timeline
from octavo.bench.serving import line, report
from octavo.bench.workload import Item, Workload
from shared.errors import InvalidRequest


class _Clock:
    """What `generate` calls a streamer: told the prompt first, then each token as it is made."""

    def __init__(self) -> None:
        self._prompt_told = False
        self.moments: list[float] = []

    def put(self, _value: Any) -> None:
        if self._prompt_told:
            self.moments.append(time.perf_counter())
        self._prompt_told = True

    def end(self) -> None:
        """Nothing follows."""


def _timeline(model: Any, item: Item) -> Timeline:
    import torch

    clock, start = _Clock(), time.perf_counter()
    prompt = torch.tensor([item.prompt])
    made = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        streamer=clock,
        do_sample=False,
        max_new_tokens=item.output_tokens,
        min_new_tokens=item.output_tokens,
        pad_token_id=0,
    )
    end = time.perf_counter()
    output = made.shape[1] - len(item.prompt)
    return Timeline(
        start=start, pieces=tuple(clock.moments), end=end, prompt_tokens=len(item.prompt), output_tokens=output
    )


def measure(path: Path, workload: Workload, *, requests: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """A report of one run, after one request that does not count, in the dtype that the model is stored in. Raises InvalidRequest."""
    import torch
    import transformers

    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(str(path), dtype="auto").eval()
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"transformers cannot read {path}: {error}") from error
    with torch.inference_mode():
        _timeline(model, workload.items[0])
        timelines = [_timeline(model, item) for item in workload.first(requests).items]
    run: dict[str, Any] = {"concurrency": 1, "failed": 0, "errors": [], **metrics.summary(timelines)}
    progress(line(run))
    return {**report("transformers generate", path.name, workload, [run]), "dtype": str(model.dtype)}
