"""Reads a PEFT directory into what the kernels take, or says which key of it is wrong and why. Nothing is left out silently.

Keys are `base_model.model.<path>.lora_A.weight` and `lora_B`, of embeddings `lora_embedding_A` and `lora_embedding_B`. Where embeddings
or the head are among the targets, PEFT also writes the base's own weights of them; those must be the base's, and are dropped.
"""

import heapq
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from kernels.lora.weights import LayerModule, LoraPair, LoraWeights
from worker.adapters.digest import digest_of
from worker.adapters.errors import AdapterInvalid, AdapterMismatch, AdapterNotFound, AdapterRankTooHigh, shown
from worker.adapters.modules import BaseModel, Target
from worker.adapters.peft_config import PeftConfig, read_config
from worker.adapters.safetensors_file import TensorEntry, TensorFile, opened, tensor
from worker.adapters.version import Version

WEIGHTS = "adapter_model.safetensors"
_PICKLE = "adapter_model.bin"
_PREFIX = "base_model.model."
_ENDS = {
    ".lora_A.weight": ("A", False),
    ".lora_B.weight": ("B", False),
    ".lora_embedding_A": ("A", True),
    ".lora_embedding_B": ("B", True),
}
_BASE_ENDS = (".base_layer.weight", ".weight")
TOLD = 8  # keys that a message names


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pair:
    target: Target
    path: str
    a: TensorEntry
    b: TensorEntry


def read(directory: Path, base: BaseModel, most: int) -> Version:
    """Each file is opened once. Raises AdapterNotFound, AdapterInvalid, AdapterMismatch, AdapterRankTooHigh, or AdapterMemory where the
    weights' file is over `most` bytes; before the weights are read
    everything is checked that their header tells, their size among it."""
    config = read_config(directory)
    _refuse_pickle(directory)
    with opened(directory / WEIGHTS, most) as file:
        pairs, copies = _sorted_out(file.entries, base)
        _complete(pairs, config, base)
        for pair in pairs:
            _check_shape(pair, config, base.max_rank)
        return _load(file, pairs, copies, config, base)


def _refuse_pickle(directory: Path) -> None:
    if (directory / WEIGHTS).exists():
        return
    if (directory / _PICKLE).exists():
        raise AdapterInvalid(f"{_PICKLE} is a pickle, which may run any code when it is read: save it as safetensors")
    raise AdapterNotFound(f"no {WEIGHTS} there")


def _some(keys: Collection[str]) -> str:
    told = ", ".join(map(shown, heapq.nsmallest(TOLD, keys)))
    return told if len(keys) <= TOLD else f"{told} and {len(keys) - TOLD} more"


# ---- keys


def _split(key: str) -> tuple[str, str, bool] | None:
    """(path, which of the pair, whether it is an embedding's)."""
    for end, (which, embeds) in _ENDS.items():
        if key.startswith(_PREFIX) and key.endswith(end):
            return key[len(_PREFIX) : -len(end)], which, embeds
    return None


def _sorted_out(entries: Mapping[str, TensorEntry], base: BaseModel) -> tuple[list[_Pair], dict[str, TensorEntry]]:
    """The pairs, and copies of the base's own weights by the base's name. Every key is one or the other."""
    halves: dict[str, dict[str, TensorEntry]] = {}
    copies: dict[str, TensorEntry] = {}
    unknown = []
    for key, entry in entries.items():
        split, own = _split(key), _own_weight(key, base)
        if split is not None and _fits(base.modules.get(split[0]), embeds=split[2]):
            halves.setdefault(split[0], {})[split[1]] = entry
        elif own is not None:
            copies[own] = entry
        else:
            unknown.append(key)
    if unknown:
        raise AdapterMismatch(f"keys that match nothing of this model: {_some(unknown)}")
    if not halves:
        raise AdapterInvalid(f"{WEIGHTS} holds no LoRA weights")
    alone = [path for path, found in halves.items() if len(found) == 1]
    if alone:
        raise AdapterInvalid(f"lora_A without lora_B, or the other way round: {_some(alone)}")
    pairs = [_Pair(target=base.modules[path], path=path, a=two["A"], b=two["B"]) for path, two in halves.items()]
    return pairs, copies


def _fits(target: Target | None, *, embeds: bool) -> bool:
    return target is not None and (target.end == "embed") == embeds


def _own_weight(key: str, base: BaseModel) -> str | None:
    """The base's tensor that this key is a copy of, if it is one of an embedding or the head."""
    for end in _BASE_ENDS:
        path = key.removeprefix(_PREFIX).removesuffix(end)
        target = base.modules.get(path)
        if key == f"{_PREFIX}{path}{end}" and target is not None and target.end is not None:
            return f"{path}.weight"
    return None


def _ends(path: str) -> set[str]:
    """What PEFT's `target_modules` may call the module at `path`: it, and what follows each of its dots."""
    parts = path.split(".")
    return {".".join(parts[start:]) for start in range(len(parts))}


def _complete(pairs: Collection[_Pair], config: PeftConfig, base: BaseModel) -> None:
    """Every module that the configuration says was trained must be there, or part of the adapter would be missing from every answer."""
    if config.targets is None:
        return
    targets = set(config.targets)
    unseen = targets.difference(*(_ends(pair.path) for pair in pairs))
    there = {pair.target for pair in pairs}
    lacking = {target: path for path, target in base.modules.items() if _trained(path, target, config, targets)}
    missing = [path for target, path in lacking.items() if target not in there]
    if unseen or missing:
        message = f"adapter_config.json tells of modules that {WEIGHTS} does not hold"
        raise AdapterMismatch(f"{message}: {_some(unseen or missing)}")


def _trained(path: str, target: Target, config: PeftConfig, targets: Collection[str]) -> bool:
    in_layers = config.layers is None or target.layer in config.layers
    return in_layers and not _ends(path).isdisjoint(targets)


# ---- shapes


def _check_shape(pair: _Pair, config: PeftConfig, max_rank: int) -> None:
    """AdapterMismatch and AdapterRankTooHigh tell the numbers."""
    if len(pair.a.shape) != 2 or len(pair.b.shape) != 2:
        raise AdapterMismatch(
            f"{pair.path}: lora_A {list(pair.a.shape)} and lora_B {list(pair.b.shape)} are no matrices"
        )
    target, rank = pair.target, pair.a.shape[0]
    if pair.a.shape[1] != target.inside or pair.b.shape[0] != target.out:
        raise AdapterMismatch(
            f"{pair.path}: lora_A {list(pair.a.shape)} and lora_B {list(pair.b.shape)} are for a projection from "
            f"{pair.a.shape[1]} to {pair.b.shape[0]}; this model's goes from {target.inside} to {target.out}"
        )
    told = config.rank_of(pair.path)
    if pair.b.shape[1] != rank or told != rank:
        raise AdapterMismatch(
            f"{pair.path}: lora_A has rank {rank}, lora_B {pair.b.shape[1]}, and adapter_config.json says {told}"
        )
    if rank > max_rank:
        raise AdapterRankTooHigh(f"{pair.path}: rank {rank} is over the {max_rank} that this worker serves")


# ---- weights


def _load(
    file: TensorFile, pairs: list[_Pair], copies: Mapping[str, TensorEntry], config: PeftConfig, base: BaseModel
) -> Version:
    data = file.data()
    _check_copies(data, copies, base)
    halves = {entry.name: tensor(data, entry) for pair in pairs for entry in (pair.a, pair.b)}
    if copies:  # they share the file's memory, which is not to be kept for them
        halves = {name: half.clone() for name, half in halves.items()}
    broken = [name for name, half in halves.items() if not bool(torch.isfinite(half).all())]
    if broken:
        raise AdapterInvalid(f"values that are not finite in {_some(broken)}")
    digest = digest_of(config.raw, ((entry, data) for pair in pairs for entry in (pair.a, pair.b)))
    weights = _weights(pairs, halves, config, base)
    size = sum(half.nbytes for half in halves.values())
    return Version(weights=weights, digest=digest, rank=weights.rank, bytes=size)


def _check_copies(data: memoryview, copies: Mapping[str, TensorEntry], base: BaseModel) -> None:
    for name, entry in copies.items():
        own = base.tensor(name)
        found = tensor(data, entry)
        if found.shape != own.shape or not torch.equal(found.float(), own.float()):
            raise AdapterMismatch(f"{entry.name} {list(found.shape)} is not the base model's {name} {list(own.shape)}")


def _weights(
    pairs: list[_Pair], halves: Mapping[str, torch.Tensor], config: PeftConfig, base: BaseModel
) -> LoraWeights:
    layers: tuple[dict[LayerModule, LoraPair], ...] = tuple({} for _ in range(base.shapes.layers))
    ends: dict[str, LoraPair] = {}
    for pair in pairs:
        a, b, scale = halves[pair.a.name], halves[pair.b.name], config.scale_of(pair.path)
        if pair.target.end is not None:
            ends[pair.target.end] = LoraPair(a=a, b=b, scale=scale)
        for part, rows in _parts(pair.target, base):
            layers[pair.target.layer][part] = LoraPair(a=a, b=b[rows], scale=scale)
    return LoraWeights(layers=layers, head=ends.get("head"), embed=ends.get("embed"))


def _parts(target: Target, base: BaseModel) -> Iterator[tuple[LayerModule, slice]]:
    """The kernels' modules that a module of the base stacks, each with its rows."""
    start = 0
    for part in target.parts:
        end = start + base.shapes.modules[part][0]
        yield part, slice(start, end)
        start = end
