"""The keys of rank_pattern and alpha_pattern: regular expressions from a stranger, which Python matches while nothing else runs.

So each is counted before it is compiled: how many ways there are at most to match it, over which a search that fails goes back and forth.
"""

import re
from collections.abc import Collection
from math import comb, prod

# Sums over all patterns of an adapter.
MOST_WAYS = 100_000
LEAST = 20  # that each counts, for it has to be compiled
MOST_REPEATS = 3  # of one pattern
PATH = 40  # characters that a repetition may match: about as long as modules' paths are
_PLAIN = re.compile(r"[\w.\-\\^$|()\[\]*+?]{1,200}")
_REPEATED_GROUP = re.compile(r"\)[*+?]|\\[1-9]|\(\?")
_HIDDEN_GROUP = re.compile(r"\\[()|]|\[[^\]]*[()|\[]")  # these look like groups, and are none


def compiled(keys: Collection[str]) -> list[re.Pattern[str]]:
    """Each as PEFT matches it: at the end of a module's path, after its beginning or a dot. Raises ValueError naming the one at fault."""
    left = MOST_WAYS
    for key in keys:
        if not _plain(key):
            raise ValueError(f"the key {key[:200]!r} is not a plain enough pattern")
        left -= LEAST + max(len(key), ways(key))
        if left < 0:
            raise ValueError(f"up to the key {key!r} there are over {MOST_WAYS} ways to match")
    return [_compiled(key) for key in keys]


def ways(key: str) -> int:
    """How many there are at most to match a plain pattern: of each group one alternative, of each repetition one length."""
    alternatives, groups = [], [1]
    for char in key:
        if char == "(":
            groups.append(1)
        elif char == ")" and len(groups) > 1:
            alternatives.append(groups.pop())
        groups[-1] += char == "|"
    repeats = key.count("*") + key.count("+")
    return prod(alternatives) * prod(groups) * comb(PATH + repeats, repeats) << key.count("?")


def _plain(key: str) -> bool:
    hidden = _REPEATED_GROUP.search(key) or _HIDDEN_GROUP.search(key)
    return bool(_PLAIN.fullmatch(key)) and not hidden and sum(map(key.count, "*+?")) <= MOST_REPEATS


def _compiled(key: str) -> re.Pattern[str]:
    try:
        return re.compile(rf"(?:.*\.)?(?:{key})$")
    except re.error as error:
        raise ValueError(f"{key!r} is no pattern: {error}") from error
