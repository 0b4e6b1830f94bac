"""Models through the engine and the runner for devices, against transformers on the same device."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from shared.types import Sampling
from tests.bench.gpu.bed import Bed, Row, Tensor
from tests.bench.gpu.models import BILLION, SMALL, TOY, Sizes, Weights, llama, made
from tests.bench.gpu.serving import Server
from tests.bench.gpu.steady import Steady, waits_refused

_SLOTS = 8
_MODES = ((True, True), (False, True), (True, False), (False, False))  # overlap, graphs
_NOISE = 3.0  # times transformers' own rounding: ours may err on both of two tokens, and its measure is a sample


def check(bed: Bed) -> Iterator[Row]:
    """Tokens of float32, rounding of bfloat16, bits of --deterministic, and the memory that a runner finds for itself."""
    for name, sizes in (("stories260K-size", bed.size(TOY, SMALL)), ("1B-shaped", bed.size(TOY, BILLION))):
        model = llama(bed, sizes, torch.float32)
        yield from _exact(bed, name, sizes, model)
        yield from (_steady(bed, name, sizes, model, graphs) for graphs in (True, False))
        if name == "1B-shaped":
            yield _rounded(bed, name, sizes, model)
            yield _bitwise(bed, name, sizes, model)
            yield _profiled(bed, name, sizes, model)
        del model
        bed.forget()


def prompts_of(bed: Bed, sizes: Sizes, lengths: Sequence[int]) -> list[list[int]]:
    """Random ones."""
    draw = torch.Generator().manual_seed(3)
    return [torch.randint(sizes["vocab_size"], (length,), generator=draw).tolist() for length in lengths]


def _asked(bed: Bed, sizes: Sizes) -> tuple[list[list[int]], Sampling]:
    prompts = prompts_of(bed, sizes, bed.size((3, 17), (17, 1, 130, 33, 600)))
    return prompts, Sampling(temperature=0.0, max_tokens=bed.size(4, 32), ignore_eos=True)


def _longest(bed: Bed) -> int:
    return bed.size(32, 1024)


def _exact(bed: Bed, name: str, sizes: Sizes, model: Any) -> Iterator[Row]:
    """Greedy tokens of float32, in one batch, with overlap and graphs on and off."""
    prompts, sampling = _asked(bed, sizes)
    want = [_generated(bed, model, prompt, sampling.max_tokens) for prompt in prompts]
    for graphs in (True, False):
        runner = made(
            bed, Weights(model), dtype="float32", slots=_SLOTS, longest=_longest(bed), graphs=graphs, step_tokens=256
        )
        for overlap in (True, False):
            got = Server(runner, overlap=overlap, slots=_SLOTS, step_tokens=256).run(prompts, sampling).tokens
            yield {
                "model": name,
                "check": "greedy tokens as transformers' generate",
                "dtype": "float32",
                "overlap": overlap,
                "graphs": graphs,
                "tokens": sum(map(len, want)),
                "equal": got == want,
            }
        runner.close()


def _steady(bed: Bed, name: str, sizes: Sizes, model: Any, graphs: bool) -> Row:
    """Decode steps after the first ones, with all that torch knows to wait for the device turned into an error."""
    prompts, greedy = _asked(bed, sizes)
    hot = replace(
        greedy,
        temperature=0.8,
        top_k=40,
        top_p=0.95,
        seed=7,
        logprobs=2,
        repetition_penalty=1.1,
        max_tokens=bed.size(8, 32),
    )
    runner = made(
        bed, Weights(model), dtype="bfloat16", slots=_SLOTS, longest=_longest(bed), graphs=graphs, step_tokens=256
    )
    watched, error = Steady(runner, nullcontext if bed.dry else waits_refused), None
    try:
        Server(watched, overlap=True, slots=_SLOTS, step_tokens=256).run(prompts, hot)
    except RuntimeError as found:
        error = str(found)
    runner.close()
    return {
        "model": name,
        "check": "steady decode steps wait for nothing" + (" (not watched without a GPU)" if bed.dry else ""),
        "dtype": "bfloat16",
        "graphs": graphs,
        "steps": watched.steps,
        "error": error,
        "equal": error is None and watched.steps > 0,
    }


def _generated(bed: Bed, model: Any, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt], device=bed.device)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count,
                         min_new_tokens=count, pad_token_id=0)  # fmt: skip
    return [int(token) for token in out[0, len(prompt) :]]


def _rounded(bed: Bed, name: str, sizes: Sizes, model: Any) -> Row:
    """Each greedy token of bfloat16, given those before it, against transformers in float32: it is the best one, or worse than that by no
    more than a few times what transformers' own bfloat16 is off.
    """
    prompts, sampling = _asked(bed, sizes)
    runner = made(bed, Weights(model), dtype="bfloat16", slots=_SLOTS, longest=_longest(bed), step_tokens=256)
    texts = Server(runner, overlap=True, slots=_SLOTS, step_tokens=256).run(prompts, sampling).tokens
    runner.close()
    exact = [_teacher(bed, model, prompt, text) for prompt, text in zip(prompts, texts, strict=True)]
    half = model.to(torch.bfloat16)
    rounded = [_teacher(bed, half, prompt, text) for prompt, text in zip(prompts, texts, strict=True)]
    model.to(torch.float32)
    noise = max(float((one - other).abs().max()) for one, other in zip(exact, rounded, strict=True))
    chosen = [torch.tensor(text, device=bed.device)[:, None] for text in texts]
    gap = max(float((one.amax(-1) - one.gather(1, own)[:, 0]).max()) for one, own in zip(exact, chosen, strict=True))
    equal = [one.argmax(-1) == own[:, 0] for one, own in zip(rounded, chosen, strict=True)]
    return {
        "model": name,
        "check": "greedy tokens within transformers' rounding, teacher-forced",
        "dtype": "bfloat16",
        "tokens": sum(map(len, texts)),
        "off": gap,
        "limit": _NOISE * noise,
        "same_as_transformers": float(torch.cat(equal).double().mean()),
        "equal": gap <= _NOISE * noise,
    }


def _teacher(bed: Bed, model: Any, prompt: list[int], text: list[int]) -> Tensor:
    """Logits float32 of the positions that the text's tokens were drawn at."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + text], device=bed.device)).logits[0]
    found: Tensor = logits[len(prompt) - 1 : -1].float()
    return found


def _bitwise(bed: Bed, name: str, sizes: Sizes, model: Any) -> Row:
    """--deterministic: tokens and log-probabilities of a request have the same bits in a batch and alone, chunked otherwise."""
    prompts, greedy = _asked(bed, sizes)
    sampling = Sampling(temperature=0.8, top_p=0.95, seed=11, max_tokens=greedy.max_tokens, ignore_eos=True, logprobs=1)
    runner = made(
        bed, Weights(model), dtype="bfloat16", slots=_SLOTS, longest=_longest(bed), deterministic=True, step_tokens=256
    )
    together = Server(runner, overlap=True, slots=_SLOTS, step_tokens=256).run(prompts, sampling)
    equal = True
    for prompt, answer in zip(prompts, together.answers, strict=True):
        alone = Server(runner, overlap=False, slots=_SLOTS, step_tokens=bed.size(64, 100)).run([prompt], sampling)
        equal = equal and alone.answers[0] == answer
    runner.close()
    return {
        "model": name,
        "check": "deterministic: the same bits in a batch and alone",
        "dtype": "bfloat16",
        "tokens": sum(len(answer.tokens) for answer in together.answers),
        "equal": equal,
    }


def _profiled(bed: Bed, name: str, sizes: Sizes, model: Any) -> Row:
    """KV sized by what a full step leaves, and requests that run in it."""
    prompts, sampling = _asked(bed, sizes)
    runner = made(
        bed, Weights(model), dtype="bfloat16", slots=bed.size(4, 64), longest=_longest(bed),
        step_tokens=bed.size(32, 2048), kv=False,
    )  # fmt: skip
    served = Server(runner, overlap=True, slots=bed.size(4, 64), step_tokens=bed.size(32, 2048)).run(prompts, sampling)
    found = {"kv_gib": runner.kv_bytes / 2**30, "blocks": runner.num_blocks}
    runner.close()
    return {
        "model": name,
        "check": "KV by what a full step leaves",
        "dtype": "bfloat16",
        "tokens": sum(map(len, served.tokens)),
        **found,
        "equal": runner.num_blocks > 0,
    }
