"""What a bench sends: prompts as token ids, and how many tokens each shall get."""

import json
import random
from dataclasses import dataclass
from pathlib import Path

from shared.errors import InvalidRequest

# Ids that the usual vocabularies (32,000 and more) have, that are nobody's special tokens, and that are words rather than bytes: after
# single bytes a model goes on in bytes, and a stream waits for whole characters.
FIRST_TOKEN, LAST_TOKEN = 1_000, 30_000
PROMPT_TOKENS = (24, 384)
OUTPUT_TOKENS = (32, 160)


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One request: `output_tokens` are made whatever the model says (ignore_eos)."""

    prompt: tuple[int, ...]
    output_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Requests in the order in which they are sent, and where they came from."""

    name: str
    items: tuple[Item, ...]

    def first(self, count: int) -> "Workload":
        """`count` requests, from the start, over again where there are fewer."""
        items = tuple(self.items[i % len(self.items)] for i in range(count))
        return Workload(name=self.name, items=items)


def generated(seed: int = 0, count: int = 96) -> Workload:
    """Mixed lengths, uniform over PROMPT_TOKENS and OUTPUT_TOKENS; the same for the same seed, on every machine."""
    draw = random.Random(seed)
    items = []
    for _ in range(count):
        length, output = draw.randint(*PROMPT_TOKENS), draw.randint(*OUTPUT_TOKENS)
        prompt = tuple(draw.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(length))
        items.append(Item(prompt=prompt, output_tokens=output))
    return Workload(name=f"generated, seed {seed}", items=tuple(items))


def read(path: Path) -> Workload:
    """A JSON file {"requests": [{"prompt_token_ids": [...], "output_len": n}]}. Raises InvalidRequest naming what is missing."""
    try:
        requests = json.loads(path.read_text())["requests"]
        items = (Item(prompt=tuple(r["prompt_token_ids"]), output_tokens=int(r["output_len"])) for r in requests)
        workload = Workload(name=path.name, items=tuple(items))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(f"{path}: not a workload: {error!r}", param="workload") from error
    if not workload.items:
        raise InvalidRequest(f"{path}: holds no requests", param="workload")
    return workload
