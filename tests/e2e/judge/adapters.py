"""Random LoRA adapters that peft makes, saves and merges: the judge of what adapters give."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How one adapter is made. `options` go into peft's LoraConfig."""

    rank: int
    modules: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)


def kinds() -> list[Kind]:
    """Twelve, of ranks 4 to 64: each projection alone or in company, rsLoRA, patterns, embeddings and head."""
    patterns = {"rank_pattern": {"q_proj": 4, r".*\.1\.mlp\.up_proj": 40}, "alpha_pattern": {"down_proj": 3}}
    return [
        Kind(rank=4, modules=("q_proj", "v_proj")),
        Kind(rank=8, modules=(*ATTENTION, *MLP)),
        Kind(rank=16, modules=("gate_proj",)),
        Kind(rank=64, modules=("o_proj", "down_proj")),
        Kind(rank=12, modules=("k_proj", "up_proj"), options={"use_rslora": True}),
        Kind(rank=24, modules=(*ATTENTION, *MLP), options=patterns),
        Kind(rank=32, modules=ATTENTION, options={"layers_to_transform": [0, 2]}),
        Kind(rank=8, modules=("lm_head", "v_proj")),
        Kind(rank=10, modules=("embed_tokens", "o_proj")),
        Kind(rank=48, modules=MLP, options={"use_rslora": True}),
        Kind(rank=16, modules=("embed_tokens", "lm_head", *ATTENTION, *MLP)),
        Kind(rank=64, modules=(*ATTENTION, *MLP)),
    ]


def fused(kind: Kind) -> Kind:
    """The same modules by Phi-3's names, which stack Q, K and V, and gate and up."""
    names = {**dict.fromkeys(ATTENTION[:3], "qkv_proj"), **dict.fromkeys(MLP[:2], "gate_up_proj")}
    options = dict(kind.options)
    if "rank_pattern" in options:
        options["rank_pattern"] = {"qkv_proj": 4, r".*\.1\.mlp\.gate_up_proj": 40}
    modules = tuple(dict.fromkeys(names.get(module, module) for module in kind.modules))
    return replace(kind, modules=modules, options=options)


def untied(model: PreTrainedModel) -> PreTrainedModel:
    """A copy whose head is its own matrix: an adapter of the head alone must not reach the embedding."""
    alone = copy.deepcopy(model)
    head, table = alone.get_output_embeddings(), alone.get_input_embeddings()
    if head.weight is table.weight:
        head.weight = torch.nn.Parameter(table.weight.detach().clone(), requires_grad=False)
        alone.config.tie_word_embeddings = False
    return alone


def save_random(model: PreTrainedModel, kind: Kind, folder: Path, *, seed: int, strength: float) -> Path:
    """An adapter with random weights in both factors, whose products are about `strength` times the weights that they change."""
    config = LoraConfig(
        r=kind.rank,
        lora_alpha=2 * kind.rank**0.5 if kind.options.get("use_rslora") else 2 * kind.rank,
        target_modules=list(kind.modules),
        task_type="CAUSAL_LM",
        **kind.options,
    )
    torch.manual_seed(seed)
    adapted = get_peft_model(untied(model), config)
    for name, tensor in adapted.named_parameters():
        if "lora_" in name:
            first = "lora_A" in name or "lora_embedding_A" in name
            size = 1.0 if first else strength / (2 * tensor.shape[1] ** 0.5) * _spread(adapted, name)
            torch.nn.init.normal_(tensor, std=size)
    adapted.save_pretrained(str(folder), save_embedding_layers=False)
    return folder


def _spread(model: torch.nn.Module, name: str) -> float:
    """The standard deviation of the weight that the adapter of that name changes."""
    base = model.get_submodule(name.split(".lora_", maxsplit=1)[0]).base_layer.weight
    return float(base.detach().std())


def merged(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """The model with the adapter's products added to its weights, by peft, in its own dtype (float32)."""
    return PeftModel.from_pretrained(untied(model), str(folder)).merge_and_unload().eval()
