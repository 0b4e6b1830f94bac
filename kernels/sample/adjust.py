"""Changes to the logits of some rows before tokens are drawn, in place. Each is linear in what a row asks for, none in the vocabulary.

`logits` is float32 [rows, vocabulary]; -inf forbids a token. What concerns several tokens of several rows comes as pairs: `rows[i]` and
`tokens[i]`, int64 [pairs]. No change looks at any row but its own, so that a row's result is the same in every batch.
"""

import torch

ANY = -2  # in a bad word's beginning: whatever stands there
NOTHING = -1  # in a tail: there is no output so far back


def allow_only(logits: torch.Tensor, only: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor) -> None:
    """Forbid all but the pairs in the rows `only` int64, to which all pairs belong."""
    kept = logits[rows, tokens]
    logits.index_fill_(0, only, -torch.inf)
    logits[rows, tokens] = kept


def forbid(logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor) -> None:
    """Forbid the pairs."""
    logits[rows, tokens] = -torch.inf


def forbid_endings(
    logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, beginnings: torch.Tensor, tails: torch.Tensor
) -> None:
    """Forbid pair i where `tails[i]` is like `beginnings[i]`.

    tails int64 [pairs, length]: the last outputs of the pair's row, NOTHING before the first; beginnings int64 [pairs, length]: ANY before
    the first token of one.
    """
    met = ((beginnings == tails) | (beginnings == ANY)).all(-1)
    # Added, not stored: a pair may come twice, and a sum of zeros and -inf does not depend on the order.
    logits.index_put_((rows, tokens), torch.where(met, -torch.inf, 0.0), accumulate=True)


def add_bias(logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, values: torch.Tensor) -> None:
    """Add `values` float32 [pairs] to the pairs, which are distinct."""
    logits.index_put_((rows, tokens), values, accumulate=True)


def penalise(
    logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, counts: torch.Tensor, penalties: torch.Tensor
) -> None:
    """Repetition (divides what is positive, multiplies what is not), then presence and frequency (subtracted), of tokens seen so far.

    rows int64 [n], distinct; tokens int64 [n, length]: every token of the row's prompt and output, in any order and number; counts int32 of
    the same shape: how often each stands in the output; penalties float32 [n, 3]: repetition, presence, frequency. Definitions: Keskar et
    al. 2019 (CTRL), over prompt and output; OpenAI's API reference, over the output alone.
    """
    repetition, presence, frequency = penalties[:, None].unbind(-1)
    at = (rows[:, None], tokens)
    before = logits[at]
    repeated = torch.where(before > 0, before / repetition, before * repetition)
    # Equal tokens of a row compute the same value, so that it does not matter which of them is stored last.
    logits[at] = repeated - (counts * frequency + (counts > 0) * presence)
