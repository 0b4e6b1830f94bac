"""Adapters as PEFT writes them, for a made-up model of two layers, and a device that holds their digests in the fake executor's slots."""

import json
import os
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from kernels.lora.weights import LoraShapes, Module
from tests.fakes.executor import FakeExecutor
from worker.adapters.modules import BaseModel, base_model
from worker.adapters.peft import read
from worker.adapters.version import AdapterParts, Version

HIDDEN, INTERMEDIATE, VOCAB, LAYERS = 8, 12, 50, 2
SIZES: dict[Module, tuple[int, int]] = {
    "q": (8, HIDDEN),
    "k": (4, HIDDEN),
    "v": (4, HIDDEN),
    "o": (HIDDEN, 8),
    "gate": (INTERMEDIATE, HIDDEN),
    "up": (INTERMEDIATE, HIDDEN),
    "down": (HIDDEN, INTERMEDIATE),
    "head": (VOCAB, HIDDEN),
    "embed": (HIDDEN, VOCAB),
}
SHAPES = LoraShapes(layers=LAYERS, modules=SIZES)
PATHS = {"q": "self_attn.q_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj", "down": "mlp.down_proj"}


class MadeUpCheckpoint:
    """A base whose own weights are all ones."""

    eos_token_ids = (49,)
    revision = "r"

    def __init__(self, model_type: str = "llama") -> None:
        self.config: Mapping[str, Any] = {"model_type": model_type}

    def names(self) -> list[str]:
        return []

    def tensor(self, name: str) -> torch.Tensor:
        return torch.ones(VOCAB, HIDDEN, dtype=torch.bfloat16)


def base(max_rank: int = 16, model_type: str = "llama") -> BaseModel:
    return base_model(MadeUpCheckpoint(model_type), SHAPES, max_rank=max_rank)


def config(**changes: Any) -> dict[str, Any]:
    """What PEFT writes, with changes."""
    fields: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "down_proj"],
        "bias": "none",
        "use_dora": False,
        "use_rslora": False,
        "modules_to_save": None,
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "rank_pattern": {},
        "alpha_pattern": {},
        "layers_to_transform": None,
        "loftq_config": {},
        "megatron_core": "megatron.core",
        "qalora_group_size": 16,
        "base_model_name_or_path": "/somewhere/else",
    }
    return fields | changes


def pair(path: str, inside: int, out: int, rank: int, seed: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        f"base_model.model.{path}.lora_A.weight": torch.randn(rank, inside, generator=draw),
        f"base_model.model.{path}.lora_B.weight": torch.randn(out, rank, generator=draw),
    }


def tensors(
    rank: int = 4, seed: int = 0, modules: Iterable[Module] = ("q", "down"), layers: int = LAYERS
) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for layer in range(layers):
        for number, module in enumerate(modules):
            out, inside = SIZES[module]
            found |= pair(f"model.layers.{layer}.{PATHS[module]}", inside, out, rank, 100 * seed + 10 * layer + number)
    return found


def write(
    directory: Path, *, held: dict[str, torch.Tensor] | None = None, rank: int = 4, seed: int = 0, **changes: Any
) -> Path:
    """An adapter in `directory`: `held`, or made of `rank` and `seed`; `changes` are of its configuration."""
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors(rank, seed) if held is None else held, directory / "adapter_model.safetensors")
    (directory / "adapter_config.json").write_text(json.dumps(config(**({"r": rank} | changes))))
    return directory


def with_header(directory: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The adapter with its safetensors header changed, and its data as it was."""
    path = write(directory) / "adapter_model.safetensors"
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    change(header)
    packed = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(packed)) + packed + data[8 + length :])
    return directory


def _set(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        next(iter(header.values()))[key] = value

    return change


def _cut(directory: Path, size: int) -> Path:
    path = write(directory) / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    return directory


def _pickled(directory: Path) -> Path:
    path = write(directory) / "adapter_model.safetensors"
    path.rename(directory / "adapter_model.bin")
    return directory


def _escaping(directory: Path) -> Path:
    """Its weights are a link to something elsewhere."""
    path = write(directory) / "adapter_model.safetensors"
    elsewhere = path.rename(directory.parent.parent / f"{directory.name}-elsewhere.safetensors")
    path.symlink_to(elsewhere)
    return directory


def pipe(directory: Path, name: str) -> Path:
    """One of its files is a pipe, of which nobody writes the other end."""
    (write(directory) / name).unlink()
    os.mkfifo(directory / name)
    return directory


def _twice(directory: Path) -> Path:
    """Its header tells of its first tensor a second time."""
    path = write(directory) / "adapter_model.safetensors"
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = data[8:end].strip()
    first = json.dumps(dict([next(iter(json.loads(header).items()))])).encode()
    packed = first[:-1] + b", " + header[1:]
    path.write_bytes(struct.pack("<Q", len(packed)) + packed + data[end:])
    return directory


def _gap(directory: Path) -> Path:
    """Its tensors' places leave some bytes to nobody."""

    def change(header: dict[str, Any]) -> None:
        last = max(header.values(), key=lambda fields: fields["data_offsets"][1])
        last["data_offsets"] = [offset + 4_096 for offset in last["data_offsets"]]

    return _longer(with_header(directory, change))


def _longer(directory: Path) -> Path:
    with (directory / "adapter_model.safetensors").open("ab") as file:
        file.write(bytes(4_096))
    return directory


def _text(directory: Path, text: str) -> Path:
    (write(directory) / "adapter_config.json").write_text(text)
    return directory


_SOME = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
_LONE = {key: value for key, value in tensors().items() if key != _SOME}
_NAN = tensors() | {_SOME: torch.full((4, HIDDEN), float("nan"))}
_INF = tensors() | {_SOME: torch.full((4, HIDDEN), float("-inf"))}
_WIDE = tensors() | pair("model.layers.0.self_attn.q_proj", HIDDEN + 1, 8, 4, 1)
_OTHER = tensors() | {"base_model.model.transformer.h.0.attn.c_attn.lora_A.weight": torch.ones(4, 8)}
_DORA = tensors() | {"base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector": torch.ones(8)}
_BIAS = tensors() | {"base_model.model.model.layers.0.self_attn.q_proj.bias": torch.ones(8)}
_NORM = tensors() | {"base_model.model.model.norm.weight": torch.ones(8)}
_EMBED = tensors() | {"base_model.model.lm_head.weight": torch.zeros(VOCAB, HIDDEN)}

# How each is written, and what its refusal must say.
BROKEN: dict[str, tuple[Callable[[Path], Path], str]] = {
    "pickle": (_pickled, r"adapter_model\.bin is a pickle"),
    "no configuration": (lambda d: (write(d) / "adapter_config.json").unlink() or d, r"no adapter_config\.json"),
    "no weights": (lambda d: (write(d) / "adapter_model.safetensors").unlink() or d, r"no adapter_model\.safetensors"),
    "configuration that is no JSON": (lambda d: _text(d, "{"), "not JSON"),
    "configuration that is no object": (lambda d: _text(d, "[]"), "not an object"),
    "truncated data": (lambda d: _cut(d, 1_200), r"truncated: \d+ bytes of data, where its header tells of \d+"),
    "truncated header": (lambda d: _cut(d, 100), "truncated, or not safetensors"),
    "empty file": (lambda d: _cut(d, 0), "truncated, or not safetensors"),
    "header of another shape": (lambda d: with_header(d, _set("shape", [4, 9])), "bytes, where F32"),
    "header of negative offsets": (lambda d: with_header(d, _set("data_offsets", [-128, 0])), "data_offsets"),
    "header of far offsets": (lambda d: with_header(d, _set("data_offsets", [1 << 40, (1 << 40) + 192])), "truncated"),
    "dtype": (lambda d: with_header(d, _set("dtype", "F8_E4M3")), "dtype F8_E4M3 is not served"),
    "huge rank": (lambda d: write(d, rank=300), "rank 300 is over the 16 that this worker serves"),
    "rank of another configuration": (lambda d: write(d, rank=4, r=8), "lora_A has rank 4, lora_B 4, and .* says 8"),
    "wrong shape": (lambda d: write(d, held=_WIDE), r"from 9 to 8; this model's goes from 8 to 8"),
    "wrong model": (lambda d: write(d, held=_OTHER), r"match nothing of this model: .*c_attn\.lora_A"),
    "more layers": (lambda d: write(d, held=tensors(layers=3)), r"match nothing of this model: .*layers\.2\."),
    "fewer layers": (lambda d: write(d, held=tensors(layers=1)), r"does not hold: model\.layers\.1\.mlp\.down_proj"),
    "a module missing": (lambda d: write(d, held=tensors(modules=("q",))), "does not hold: down_proj"),
    "half a pair": (lambda d: write(d, held=_LONE), r"lora_A without lora_B.*layers\.0\.self_attn\.q_proj"),
    "nothing": (lambda d: write(d, held={}), "no LoRA weights"),
    "NaN": (lambda d: write(d, held=_NAN), "not finite in .*q_proj"),
    "infinity": (lambda d: write(d, held=_INF), "not finite in .*q_proj"),
    "DoRA": (lambda d: write(d, held=_DORA, use_dora=True), "use_dora true is not served"),
    "DoRA untold": (lambda d: write(d, held=_DORA), "match nothing of this model: .*magnitude_vector"),
    "bias": (lambda d: write(d, held=_BIAS, bias="all"), 'bias "all" is not served'),
    "bias untold": (lambda d: write(d, held=_BIAS), r"match nothing of this model: .*q_proj\.bias"),
    "modules_to_save": (
        lambda d: write(d, modules_to_save=["lm_head"]),
        r'modules_to_save \["lm_head"\] is not served',
    ),
    "a norm": (lambda d: write(d, held=_NORM), r"match nothing of this model: .*model\.norm\.weight"),
    "another head": (lambda d: write(d, held=_EMBED), r"lm_head\.weight \[50, 8\] is not the base model's"),
    "another kind": (lambda d: write(d, peft_type="IA3"), "peft_type 'IA3' is not served"),
    "another task": (lambda d: write(d, task_type="SEQ_CLS"), "task_type 'SEQ_CLS' is not served"),
    "a switch nobody knows": (lambda d: write(d, use_magic=True), "use_magic true is not served"),
    "a base that was changed": (
        lambda d: write(d, init_lora_weights="pissa_niter_4"),
        "changed the base's own weights",
    ),
    "no rank": (lambda d: write(d, r="4"), "r must be a positive integer"),
    "an endless pattern": (lambda d: write(d, rank_pattern={"(q+)+x": 4}), "not a plain enough pattern"),
    "alpha": (lambda d: write(d, lora_alpha=float("nan")), "lora_alpha must be a finite number"),
    "configuration that is a pipe": (lambda d: pipe(d, "adapter_config.json"), r"adapter_config\.json is no file"),
    "weights that are a pipe": (lambda d: pipe(d, "adapter_model.safetensors"), r"safetensors is no file"),
    "header with a key twice": (_twice, r"its header has base_model\..*lora_A\.weight twice"),
    "header with a gap": (_gap, r"lora_B\.weight begins at byte \d+ of the data, not at \d+"),
    "header of one place for two": (lambda d: with_header(d, _set("data_offsets", [192, 384])), "begins at byte"),
    "data that no tensor has": (lambda d: _longer(write(d)), "4096 bytes of data that no tensor has"),
    "header of many dimensions": (lambda d: with_header(d, _set("shape", [1 << 47] * 20_000)), "dtype, shape or"),
    "header of many tensors": (
        lambda d: with_header(d, lambda header: header.update({f"t{n}": {} for n in range(150_000)})),
        r"a header of \d+ bytes is over",
    ),
    "a key that is no text": (lambda d: write(d, target_modules=["\ud800\n"]), r"does not hold: '\\ud800\\n'"),
    "a long word": (lambda d: write(d, peft_type="x" * 500_000), r"peft_type 'x{199}\.\.\. is not served"),
    "a pattern of many ways": (lambda d: write(d, rank_pattern={r"(\w|.)" * 24 + "z": 4}), "ways to match"),
    "many patterns": (lambda d: write(d, rank_pattern={f".*.*.*z{n}": 4 for n in range(50)}), "ways to match"),
}


class HeldDevice:
    """A `Device` whose slots are the fake executor's. `gate` holds up installs while it is clear."""

    def __init__(self, executor: FakeExecutor) -> None:
        self.executor = executor
        self.gate = threading.Event()
        self.gate.set()
        self.installs: list[tuple[int, bytes]] = []
        self.fails: Callable[[bytes], Exception | None] = lambda _: None

    def install(self, slot: int, weights: bytes) -> None:
        assert self.gate.wait(30), "the gate was held for too long"
        assert slot not in self.executor.adapters_in_flight(), "a step names the slot"
        error = self.fails(weights)
        if error is not None:
            raise error
        self.executor.device.contents[slot] = weights
        self.installs.append((slot, weights))

    def clear(self, slot: int) -> None:
        assert slot not in self.executor.adapters_in_flight(), "a step names the slot"
        self.executor.device.contents[slot] = None

    @property
    def there(self) -> set[bytes]:
        """Digests that are in slots."""
        return {digest for digest in self.executor.device.contents.values() if digest is not None}


class CountingReader:
    """Reads as the worker does, and gives the digest for weights; `reads` are the directories that were read."""

    def __init__(self, max_rank: int = 16) -> None:
        self.base = base(max_rank)
        self.reads: list[Path] = []
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, directory: Path, most: int) -> Version:
        self.reads.append(directory)
        assert self.gate.wait(30), "the gate was held for too long"
        version = read(directory, self.base, most)
        return replace(version, weights=version.digest)


def parts(
    executor: FakeExecutor, *, slots: int, directory: Path | None = None, host_bytes: int = 1 << 20
) -> AdapterParts:
    """A `HeldDevice` and a `CountingReader`; the directory is looked at often."""
    return AdapterParts(
        slots=slots,
        host_bytes=host_bytes,
        read=CountingReader(),
        device=HeldDevice(executor),
        directory=directory,
        scan_seconds=0.02,
    )
