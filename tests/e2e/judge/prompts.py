"""Forty real prompts of 20 to 400 tokens, their lengths spread evenly on a logarithmic scale."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

COUNT, SHORTEST, LONGEST = 40, 20, 400


def _questions(folder: Path) -> Iterator[str]:
    for line in (folder / "mt_bench" / "question.jsonl").read_text().splitlines():
        yield json.loads(line)["turns"][0]
    for line in (folder / "gsm8k" / "test.jsonl").read_text().splitlines()[:200]:
        yield json.loads(line)["question"]


def _programs(folder: Path) -> Iterator[str]:
    for line in gzip.decompress((folder / "humaneval" / "HumanEval.jsonl.gz").read_bytes()).decode().splitlines():
        yield json.loads(line)["prompt"]


def _candidates(folder: Path, tokenizer: Any) -> Iterator[list[int]]:
    """Questions in the chat template and as they are, and programs to be completed."""
    for question in _questions(folder):
        message = [{"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        yield tokenizer.encode(text, add_special_tokens=False)
        yield tokenizer.encode(question, add_special_tokens=False)
    for program in _programs(folder):
        yield tokenizer.encode(program, add_special_tokens=False)


def real_prompts(folder: Path, tokenizer: Any) -> list[list[int]]:
    """Token ids, shortest first. The same at each call."""
    left = [tokens for tokens in _candidates(folder, tokenizer) if SHORTEST <= len(tokens) <= LONGEST]
    chosen = []
    for number in range(COUNT):
        wanted = SHORTEST * (LONGEST / SHORTEST) ** (number / (COUNT - 1))
        chosen.append(min(left, key=lambda tokens: abs(len(tokens) - wanted)))
        left.remove(chosen[-1])
    return sorted(chosen, key=len)
