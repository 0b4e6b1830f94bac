"""One decoder layer's weights, and those around the layers, from a checkpoint."""

from dataclasses import dataclass

from kernels.weights import AttnIn, AttnOut, Embedding, Head, HeadNorm, Layer, Mlp, Norm
from worker.layers.weights import Projection, WeightReader
from worker.models.spec import DecoderSpec, Names


@dataclass(frozen=True, kw_only=True, slots=True)
class Ends:
    """Weights before and after the layers."""

    embedding: Embedding
    head: Head


def load_layer(reader: WeightReader, spec: DecoderSpec, names: Names, number: int) -> Layer:
    """Layer `number`, packed; its originals are dropped on return."""
    return Layer(
        attn_in=_attn_in(reader, spec, names, number),
        attention=spec.attention[number],
        attn_out=_attn_out(reader, spec, names, number),
        mlp=_mlp(reader, spec, names, number),
    )


def load_ends(reader: WeightReader, spec: DecoderSpec, names: Names) -> Ends:
    """Embedding, final norm and head. A tied head is packed from the embedding's table."""
    shape = (spec.vocab_size, spec.hidden)
    table = reader.matrix(names.embedding, shape)
    head = table if spec.tied else reader.matrix(names.head, shape)
    norm = reader.norm(names.final_norm, spec.hidden, spec.eps, spec.norm_offset)
    return Ends(
        embedding=Embedding(table=table, scale=reader.rounded(spec.embed_scale)),
        head=Head(norm=norm, proj=reader.pack(head), softcap=spec.logit_softcap),
    )


def _attn_in(reader: WeightReader, spec: DecoderSpec, names: Names, number: int) -> AttnIn:
    a = spec.attention[number]
    rows = [heads * a.head_dim for heads in (a.heads, a.kv_heads, a.kv_heads)]
    return AttnIn(
        norm=_norm(reader, spec, names.attn_norm, number),
        qkv=reader.packed(_projections(names.qkv, rows, number, bias=spec.qkv_bias), spec.hidden),
        heads=a.heads,
        kv_heads=a.kv_heads,
        head_dim=a.head_dim,
        head_norm=_head_norm(reader, spec, names, number),
        rotary=spec.rotaries.index(spec.rotary[number]),
    )


def _projections(names: tuple[str, ...], rows: list[int], number: int, *, bias: bool) -> list[Projection]:
    """One tensor for each part, or one with all their rows."""
    rows = rows if len(names) == len(rows) else [sum(rows)]
    return [Projection(name=n.format(number), rows=r, bias=bias) for n, r in zip(names, rows, strict=True)]


def _norm(reader: WeightReader, spec: DecoderSpec, name: str | None, number: int) -> Norm | None:
    return None if name is None else reader.norm(name.format(number), spec.hidden, spec.eps, spec.norm_offset)


def _head_norm(reader: WeightReader, spec: DecoderSpec, names: Names, number: int) -> HeadNorm | None:
    if spec.head_norm is None:
        return None
    a = spec.attention[number]
    q, k = (1, 1) if spec.head_norm == "head" else (a.heads, a.kv_heads)
    return HeadNorm(
        q=reader.norm(names.q_norm.format(number), q * a.head_dim, spec.eps, spec.norm_offset),
        k=reader.norm(names.k_norm.format(number), k * a.head_dim, spec.eps, spec.norm_offset),
    )


def _attn_out(reader: WeightReader, spec: DecoderSpec, names: Names, number: int) -> AttnOut:
    a = spec.attention[number]
    out = Projection(name=names.out.format(number), rows=spec.hidden, bias=spec.out_bias)
    return AttnOut(proj=reader.packed([out], a.heads * a.head_dim), after=_norm(reader, spec, names.attn_after, number))


def _mlp(reader: WeightReader, spec: DecoderSpec, names: Names, number: int) -> Mlp:
    gate_up = _projections(names.gate_up, [spec.intermediate] * 2, number, bias=spec.mlp_bias)
    down = Projection(name=names.down.format(number), rows=spec.hidden, bias=spec.mlp_bias)
    return Mlp(
        norm=_norm(reader, spec, names.mlp_norm, number),
        gate_up=reader.packed(gate_up, spec.hidden),
        down=reader.packed([down], spec.intermediate),
        activation=spec.activation,
        after=_norm(reader, spec, names.mlp_after, number),
    )
