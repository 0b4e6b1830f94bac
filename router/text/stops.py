"""Stop strings, found in text as it comes.

The match that is complete first wins, and of several that end at one character the longest: so the result does not depend on how the
text was cut into pieces. Held back is exactly the text that could still begin a match (at most the longest string less one character).
The automaton is Aho and Corasick's (1975): one transition a character, a state's depth being the length of text held back.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Automaton:
    """Transitions, failure links, depths and matched strings (longest, or None) by state; state 0 is the start."""

    edges: tuple[dict[str, int], ...]
    fail: tuple[int, ...]
    depth: tuple[int, ...]
    match: tuple[str | None, ...]

    def next(self, state: int, char: str) -> int:
        """The state after `char`: the longest suffix of the text that begins some string."""
        while state and char not in self.edges[state]:
            state = self.fail[state]
        return self.edges[state].get(char, 0)


def _trie(strings: Sequence[str]) -> tuple[list[dict[str, int]], list[int], list[str | None]]:
    edges: list[dict[str, int]] = [{}]
    depth, match = [0], list[str | None]([None])
    for string in strings:
        state = 0
        for char in string:
            if char not in edges[state]:
                edges[state][char] = len(edges)
                edges.append({})
                depth.append(depth[state] + 1)
                match.append(None)
            state = edges[state][char]
        match[state] = string
    return edges, depth, match


def build(strings: Sequence[str]) -> Automaton:
    """The automaton of non-empty `strings`."""
    edges, depth, match = _trie(strings)
    fail = [0] * len(edges)
    queue = deque(edges[0].values())
    while queue:
        state = queue.popleft()
        match[state] = match[state] or match[fail[state]]
        for char, child in edges[state].items():
            back = fail[state]
            while back and char not in edges[back]:
                back = fail[back]
            fail[child] = edges[back].get(char, 0)
            queue.append(child)
    return Automaton(edges=tuple(edges), fail=tuple(fail), depth=tuple(depth), match=tuple(match))


class StopMatcher:
    """One choice's stop strings. Feed it text; it gives what may be shown, and the string that ended the text once one has."""

    def __init__(self, automaton: Automaton):
        self._automaton = automaton
        self._state = 0
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """The text that can no longer be part of a match; after a match, the rest up to its beginning."""
        automaton, state = self._automaton, self._state
        for at, char in enumerate(text):
            state = automaton.next(state, char)
            found = automaton.match[state]
            if found is not None:
                self.matched = found
                shown = self._held + text[: at + 1]
                self._held = ""
                return shown[: len(shown) - len(found)]
        self._state = state
        whole, keep = self._held + text, automaton.depth[state]
        self._held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep]

    def finish(self) -> str:
        """The text still held back, when the stream has ended without a match."""
        held, self._held = self._held, ""
        return held
