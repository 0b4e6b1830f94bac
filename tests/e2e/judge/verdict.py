"""transformers as the judge: teacher-forced, one forward over the prompt and our own tokens.

If at each position our token is the judge's first choice, then by induction the judge's own greedy decoding gives the same tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

TIE = 1e-5  # logits closer than this in float32 are a true tie: sums in another order may turn it


@dataclass(frozen=True, kw_only=True, slots=True)
class Disagreement:
    """Where the judge would have chosen otherwise. `gap` is by how much its logit for its own token is above that for ours."""

    position: int
    ours: int
    judges: int
    gap: float

    @property
    def is_tie(self) -> bool:
        return self.gap <= TIE


@torch.inference_mode()
def disagreements(model: Any, prompt: Sequence[int], output: Sequence[int]) -> list[Disagreement]:
    """What a transformers model would have chosen otherwise."""
    logits = model(torch.tensor([[*prompt, *output]])).logits[0, len(prompt) - 1 : -1].float()
    ours = torch.tensor(output)
    best, judges = logits.max(dim=-1)
    gaps = best - logits.gather(1, ours[:, None])[:, 0]
    return [
        Disagreement(position=at, ours=output[at], judges=int(judges[at]), gap=float(gaps[at]))
        for at in (gaps > 0).nonzero().flatten().tolist()
    ]


class Judge:
    """A transformers model; verdicts on equal sequences are given once."""

    def __init__(self, directory: Path, dtype: torch.dtype):
        self._model = AutoModelForCausalLM.from_pretrained(str(directory), dtype=dtype).eval()
        self._verdicts: dict[tuple[tuple[int, ...], tuple[int, ...]], list[Disagreement]] = {}

    def disagreements(self, prompt: Sequence[int], output: Sequence[int]) -> list[Disagreement]:
        """Every position of `output` at which greedy decoding by the judge would differ, given what stands before it."""
        key = (tuple(prompt), tuple(output))
        if key not in self._verdicts:
            self._verdicts[key] = disagreements(self._model, *key)
        return self._verdicts[key]
