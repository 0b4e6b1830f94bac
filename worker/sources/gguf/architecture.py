"""What each architecture's files call things: tensors' names, layouts and the one number that some add to their norms.

Source: the converters of llama.cpp (convert_hf_to_gguf.py), whose work is undone here, and its tables of tensor names.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_ENDS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_NAME = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>\w+)\.(?P<kind>weight|bias)")

_QKV = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj"}
_OUT = {"attn_output": "self_attn.o_proj"}
_GATED = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
_NORMS_BEFORE = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
_NORMS_AFTER = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj", "ffn_down": "mlp.down_proj"}

_LLAMA = _QKV | _OUT | _GATED | _NORMS_BEFORE
_GEMMA = _QKV | _OUT | _GATED | _NORMS_AFTER | {"attn_norm": "input_layernorm", "ffn_norm": "pre_feedforward_layernorm"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """One value of `general.architecture`.

    `parts` are a layer's tensors, by Hugging Face's names; `biased` those that may have a bias. Where `rows_alternate`, the rows of a
    head of Q and K alternate between the two halves of the rotary pairs, which Hugging Face keeps apart. `norm_offset` is what the
    converter added to every norm's weight (Gemma multiplies by 1 + weight).
    """

    model_type: str
    parts: Mapping[str, str]
    biased: frozenset[str] = frozenset()
    rows_alternate: bool = False
    norm_offset: float = 0.0

    def translate(self, name: str) -> str | None:
        """Hugging Face's name of a tensor; None where this architecture has no such tensor."""
        match = _NAME.fullmatch(name)
        if match is None or (match["kind"] == "bias" and match["part"] not in self.biased):
            return None
        if match["layer"] is None:
            return f"{_ENDS[match['part']]}.{match['kind']}" if match["part"] in _ENDS else None
        if match["part"] not in self.parts:
            return None
        return f"model.layers.{int(match['layer'])}.{self.parts[match['part']]}.{match['kind']}"


ARCHITECTURES: Mapping[str, Architecture] = {
    "gemma2": Architecture(model_type="gemma2", parts=_GEMMA, norm_offset=1.0),
    "gemma3": Architecture(model_type="gemma3_text", parts=_GEMMA | _HEAD_NORMS, norm_offset=1.0),
    "llama": Architecture(
        model_type="llama", parts=_LLAMA, biased=frozenset(_QKV | _OUT | _GATED), rows_alternate=True
    ),
    "olmo2": Architecture(model_type="olmo2", parts=_QKV | _OUT | _GATED | _NORMS_AFTER | _HEAD_NORMS),
    "phi3": Architecture(model_type="phi3", parts=_FUSED | _OUT | _NORMS_BEFORE),
    "qwen2": Architecture(model_type="qwen2", parts=_LLAMA, biased=frozenset(_QKV)),
    "qwen3": Architecture(model_type="qwen3", parts=_LLAMA | _HEAD_NORMS),
}
