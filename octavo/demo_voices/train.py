"""Trains the voices with peft, one after the other, on the CPU; each becomes a PEFT directory."""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from octavo.demo_voices.texts import HELD_OUT, QUESTIONS, VOICES

_IGNORED = -100  # a label that no loss is computed for: the question's tokens
_TARGETS = "all-linear"  # of the layers; the head is left out by peft


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """`epochs` over the questions that are trained on, in batches of `batch`; the rate falls to nothing along a cosine."""

    rank: int = 8
    epochs: int = 6
    batch: int = 5
    rate: float = 2e-3
    seed: int = 0
    dtype: torch.dtype = torch.bfloat16  # of the base's products; the adapter itself is float32


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A conversation's tokens, of which those from `answer` on are learned."""

    tokens: tuple[int, ...]
    answer: int


def train(
    model: Path, folder: Path, training: Training, progress: Callable[[str], None]
) -> Mapping[str, Mapping[str, float]]:
    """Writes an adapter for each voice under `folder`. Returns, for the base and each adapter, the loss on each voice's answers that
    nobody was trained on, in nats a token."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    examples = {
        name: [_example(tokenizer, question, answer) for question, answer in zip(QUESTIONS, answers, strict=True)]
        for name, answers in VOICES.items()
    }
    held = {name: every[-HELD_OUT:] for name, every in examples.items()}
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    losses: dict[str, Mapping[str, float]] = {"base": _losses(base, held, training)}
    for name, every in examples.items():
        adapted = _fresh(base, training)
        _fit(adapted, every[:-HELD_OUT], training, partial(_tell, progress, name))
        losses[name] = _losses(adapted, held, training)
        adapted.save_pretrained(str(folder / name))
        base = adapted.unload()
    return losses


def _tell(progress: Callable[[str], None], name: str, line: str) -> None:
    progress(f"{name}: {line}")


def _example(tokenizer: Any, question: str, answer: str) -> Example:
    asked = [{"role": "user", "content": question}]
    told = [*asked, {"role": "assistant", "content": answer}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
    whole = tokenizer.apply_chat_template(told, tokenize=False)
    before, tokens = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, whole))
    return Example(tokens=tuple(tokens), answer=len(before))


def _fresh(base: Any, training: Training) -> PeftModel:
    torch.manual_seed(training.seed)
    config = LoraConfig(
        r=training.rank, lora_alpha=2 * training.rank, target_modules=_TARGETS, task_type="CAUSAL_LM", lora_dropout=0.0
    )
    return get_peft_model(base, config)


def _fit(model: PeftModel, examples: Sequence[Example], training: Training, progress: Callable[[str], None]) -> None:
    weights = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=training.rate, weight_decay=0.0)
    steps = training.epochs * math.ceil(len(examples) / training.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for number, batch in enumerate(_batches(examples, training), 1):
        loss = _loss(model, batch, training)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        schedule.step()
        progress(f"step {number} of {steps}, loss {loss.item():.3f}")


def _batches(examples: Sequence[Example], training: Training) -> Iterator[Sequence[Example]]:
    draw = random.Random(training.seed)
    for _ in range(training.epochs):
        order = draw.sample(examples, len(examples))
        for first in range(0, len(order), training.batch):
            yield order[first : first + training.batch]


def _loss(model: Any, batch: Sequence[Example], training: Training) -> torch.Tensor:
    """Mean over the answers' tokens. Padding is on the right, and never attended to by what counts."""
    longest = max(len(example.tokens) for example in batch)
    tokens = torch.zeros(len(batch), longest, dtype=torch.long)
    labels = torch.full((len(batch), longest), _IGNORED)
    for row, example in enumerate(batch):
        own = torch.tensor(example.tokens)
        tokens[row, : len(own)] = own
        labels[row, example.answer : len(own)] = own[example.answer :]
    with torch.autocast("cpu", dtype=training.dtype, enabled=training.dtype is not torch.float32):
        loss: torch.Tensor = model(input_ids=tokens, labels=labels).loss
    return loss


def _losses(model: Any, held: Mapping[str, Sequence[Example]], training: Training) -> dict[str, float]:
    with torch.no_grad():
        return {name: round(float(_loss(model, examples, training)), 3) for name, examples in held.items()}
