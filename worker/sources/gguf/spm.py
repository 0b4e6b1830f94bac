"""Sentencepiece vocabularies with scores (`tokenizer.ggml.model` = llama), as merges with byte fallback.

Sentencepiece's BPE joins the neighbours whose joined piece has the best score; merges ranked by that score do the same.
"""

from tokenizers import Tokenizer, decoders, models, normalizers

from worker.sources.errors import SourceError
from worker.sources.gguf.metadata import Metadata
from worker.sources.gguf.vocabulary import TokenKind, Vocabulary

_SPACE = "\u2581"  # how sentencepiece writes a space
_MERGEABLE = (TokenKind.NORMAL, TokenKind.USER_DEFINED, TokenKind.UNUSED)


def build_spm(metadata: Metadata, vocabulary: Vocabulary) -> Tokenizer:
    """Model, normalizer and decoder; special tokens are added by the caller."""
    scores = metadata.items("tokenizer.ggml.scores", of=(int, float))
    if len(scores) != len(vocabulary.tokens):
        raise SourceError(
            f"{metadata.path}: tokenizer.ggml.scores has {len(scores)} entries; expected {len(vocabulary.tokens)}"
        )
    ids = vocabulary.ids()
    scored = {token: scores[number] for token, number in ids.items() if vocabulary.kinds[number] in _MERGEABLE}
    merges = _merges(scored, ids)
    unknown = vocabulary.text(vocabulary.unknown)
    model = models.BPE(vocab=ids, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    begins_with_space = metadata.flag("tokenizer.ggml.add_space_prefix", default=True)
    spaces = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if begins_with_space else spaces
    tokenizer.decoder = _decoder(begins_with_space)
    return tokenizer


def _merges(scored: dict[str, float], ids: dict[str, int]) -> list[tuple[str, str]]:
    """Every way to make a piece of two others, best score first; of one score the lower id first, then the shorter left part."""
    splits = [
        (-score, ids[piece], cut, (piece[:cut], piece[cut:]))
        for piece, score in scored.items()
        for cut in range(1, len(piece))
        if piece[:cut] in scored and piece[cut:] in scored
    ]
    return [pair for *_, pair in sorted(splits)]


def _decoder(begins_with_space: bool) -> decoders.Decoder:
    steps: list[decoders.Decoder] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if begins_with_space:
        steps.append(decoders.Strip(content=" ", left=1, right=0))
    return decoders.Sequence(steps)
