"""One decoder layer's weights, and those around the layers, from a checkpoint."""

from dataclasses import dataclass

from kernels.weights import AttnIn, AttnOut, Embedding, Head, Mlp
from worker.layers.weights import Projection, WeightReader
from worker.models.spec import DecoderSpec, Names


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """Weights of one layer, op by op."""

    attn_in: AttnIn
    attn_out: AttnOut
    mlp: Mlp


@dataclass(frozen=True, kw_only=True, slots=True)
class Ends:
    """Weights before and after the layers."""

    embedding: Embedding
    head: Head


def load_layer(reader: WeightReader, spec: DecoderSpec, names: Names, number: int) -> Layer:
    """Layer `number`, packed; its originals are dropped on return."""
    return Layer(
        attn_in=_attn_in(reader, spec, names, number),
        attn_out=_attn_out(reader, spec, names, number),
        mlp=_mlp(reader, spec, names, number),
    )


def load_ends(reader: WeightReader, spec: DecoderSpec, names: Names) -> Ends:
    """Embedding, final norm and head. A tied head is packed from the embedding's table."""
    shape = (spec.vocab_size, spec.hidden)
    table = reader.matrix(names.embedding, shape)
    head = table if spec.tied else reader.matrix(names.head, shape)
    norm = reader.norm(names.final_norm, spec.hidden, spec.eps)
    return Ends(embedding=Embedding(table=table), head=Head(norm=norm, proj=reader.pack(head)))


def _attn_in(reader: WeightReader, spec: DecoderSpec, names: Names, number: int) -> AttnIn:
    a = spec.attention
    rows = ((names.q, a.heads), (names.k, a.kv_heads), (names.v, a.kv_heads))
    qkv = [Projection(name=name.format(number), rows=heads * a.head_dim, bias=spec.qkv_bias) for name, heads in rows]
    return AttnIn(
        norm=reader.norm(names.attn_norm.format(number), spec.hidden, spec.eps),
        qkv=reader.packed(qkv, spec.hidden),
        heads=a.heads,
        kv_heads=a.kv_heads,
        head_dim=a.head_dim,
    )


def _attn_out(reader: WeightReader, spec: DecoderSpec, names: Names, number: int) -> AttnOut:
    out = Projection(name=names.out.format(number), rows=spec.hidden, bias=spec.out_bias)
    return AttnOut(proj=reader.packed([out], spec.attention.heads * spec.attention.head_dim))


def _mlp(reader: WeightReader, spec: DecoderSpec, names: Names, number: int) -> Mlp:
    gate_up = [
        Projection(name=name.format(number), rows=spec.intermediate, bias=spec.mlp_bias)
        for name in (names.gate, names.up)
    ]
    down = Projection(name=names.down.format(number), rows=spec.hidden, bias=spec.mlp_bias)
    return Mlp(
        norm=reader.norm(names.mlp_norm.format(number), spec.hidden, spec.eps),
        gate_up=reader.packed(gate_up, spec.hidden),
        down=reader.packed([down], spec.intermediate),
        activation=spec.activation,
    )
