"""What can be said of sampling options without a model."""

from collections.abc import Iterable

from shared.types import Sampling


def forbids_everything(sampling: Sampling, ends: Iterable[int]) -> bool:
    """Whether no first token is left: all that is allowed is a bad word by itself, or one of `ends` before min_tokens are out."""
    banned = {word[0] for word in sampling.bad_words if len(word) == 1}
    if sampling.min_tokens:
        banned.update(ends)
    return bool(sampling.allowed_token_ids) and banned.issuperset(sampling.allowed_token_ids)
