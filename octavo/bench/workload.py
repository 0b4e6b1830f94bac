"""What a bench sends: prompts as token ids, and how many tokens each shall get."""

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shared.errors import InvalidRequest

# Ids that the usual vocabularies (32,000 and more) have, that are nobody's special tokens, and that are words rather than bytes: after
# single bytes a model goes on in bytes, and a stream waits for whole characters.
FIRST_TOKEN, LAST_TOKEN = 1_000, 30_000
PROMPT_TOKENS = (24, 384)
OUTPUT_TOKENS = (32, 160)
PREFILL_PROBES, PREFILL_PROBE_TOKENS = 5, 512
DECODE_PROBES, DECODE_PROBE_TOKENS = 3, 128


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One request: `output_tokens` are made whatever the model says (ignore_eos)."""

    prompt: tuple[int, ...]
    output_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Probes:
    """Requests that are made one at a time: prompts of `prefill` for the time to one token, and those of `decode` for the time of each
    of the tokens that follow the first, of which `Item.output_tokens` counts all.
    """

    prefill: tuple[Item, ...] = ()
    decode: tuple[Item, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """Requests in the order in which they are sent, probes, and where they came from."""

    name: str
    items: tuple[Item, ...]
    probes: Probes = Probes()

    def first(self, count: int) -> "Workload":
        """`count` requests, from the start, over again where there are fewer."""
        items = tuple(self.items[i % len(self.items)] for i in range(count))
        return replace(self, items=items)

    @property
    def longest(self) -> int:
        """Tokens of the longest request, its output included."""
        items = (*self.items, *self.probes.prefill, *self.probes.decode)
        return max(len(item.prompt) + item.output_tokens for item in items)


def generated(seed: int = 0, count: int = 96) -> Workload:
    """Mixed lengths, uniform over PROMPT_TOKENS and OUTPUT_TOKENS; the same for the same seed, on every machine."""
    draw = random.Random(seed)

    def drawn(length: int) -> tuple[int, ...]:
        return tuple(draw.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(length))

    items = []
    for _ in range(count):
        length, output = draw.randint(*PROMPT_TOKENS), draw.randint(*OUTPUT_TOKENS)
        items.append(Item(prompt=drawn(length), output_tokens=output))
    prefill = [Item(prompt=drawn(PREFILL_PROBE_TOKENS), output_tokens=1) for _ in range(PREFILL_PROBES)]
    decode = [
        Item(prompt=drawn(DECODE_PROBE_TOKENS), output_tokens=DECODE_PROBE_TOKENS + 1) for _ in range(DECODE_PROBES)
    ]
    probes = Probes(prefill=tuple(prefill), decode=tuple(decode))
    return Workload(name=f"generated, seed {seed}", items=tuple(items), probes=probes)


def read(path: Path) -> Workload:
    """A JSON file {"requests": [{"prompt_token_ids": [...], "output_len": n}]}, and "probes" where there are any (`written` makes one).

    Raises InvalidRequest naming what is missing.
    """
    try:
        content = json.loads(path.read_text())
        items = (_item(entry["prompt_token_ids"], entry["output_len"]) for entry in content["requests"])
        workload = Workload(name=path.name, items=tuple(items), probes=_probes(content.get("probes", {})))
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}", param="workload") from error
    except KeyError as error:
        raise InvalidRequest(f"{path}: not a workload: {error} is missing", param="workload") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidRequest(f"{path}: not a workload: {error}", param="workload") from error
    if not workload.items:
        raise InvalidRequest(f"{path}: holds no requests", param="workload")
    return workload


def _item(prompt: Iterable[int], output_tokens: int) -> Item:
    return Item(prompt=tuple(prompt), output_tokens=int(output_tokens))


def _probes(content: Mapping[str, Any]) -> Probes:
    """`p512` are prompts of one token of output; those of `p128` get `decode_len` tokens after their first."""
    after = int(content.get("decode_len", DECODE_PROBE_TOKENS))
    return Probes(
        prefill=tuple(_item(entry["prompt_token_ids"], 1) for entry in content.get("p512", [])),
        decode=tuple(_item(entry["prompt_token_ids"], after + 1) for entry in content.get("p128", [])),
    )


def written(workload: Workload) -> dict[str, Any]:
    """What `read` reads, in the form that programs of others read as well."""

    def entry(item: Item) -> dict[str, Any]:
        return {"prompt_token_ids": list(item.prompt), "prompt_len": len(item.prompt), "output_len": item.output_tokens}

    decode = workload.probes.decode
    return {
        "num_requests": len(workload.items),
        "total_prompt_tokens": sum(len(item.prompt) for item in workload.items),
        "total_output_tokens": sum(item.output_tokens for item in workload.items),
        "requests": [entry(item) for item in workload.items],
        "probes": {
            "p512": [entry(item) for item in workload.probes.prefill],
            "p128": [entry(item) for item in decode],
            "decode_len": decode[0].output_tokens - 1 if decode else DECODE_PROBE_TOKENS,
        },
    }
