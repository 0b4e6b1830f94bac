"""C33: stop strings, against a plain search of the whole text."""

from hypothesis import given
from hypothesis import strategies as st

from router.text.stops import StopMatcher, build

LETTERS = st.text("ab", max_size=30)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4)


def plain_search(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The match that ends first, the longest of those; by trying every end."""
    for end in range(len(text) + 1):
        matched = [stop for stop in stops if text[:end].endswith(stop)]
        if matched:
            longest = max(matched, key=len)
            return text[: end - len(longest)], longest
    return text, None


def streamed(text: str, stops: list[str], cuts: list[int]) -> tuple[list[str], str | None]:
    matcher, shown, start = StopMatcher(build(stops)), [], 0
    for cut in sorted({min(cut, len(text)) for cut in cuts} | {len(text)}):
        shown.append(matcher.push(text[start:cut]))
        start = cut
        if matcher.matched is not None:
            return shown, matcher.matched
    return [*shown, matcher.finish()], None


@given(LETTERS, STOPS, st.lists(st.integers(0, 30)))
def test_c33_streaming_equals_not_streaming_however_the_text_is_cut(text, stops, cuts):
    shown, matched = streamed(text, stops, cuts)
    assert ("".join(shown), matched) == plain_search(text, stops)


@given(LETTERS, STOPS)
def test_c33_at_most_the_longest_string_less_one_is_held_back(text, stops):
    matcher, shown = StopMatcher(build(stops)), ""
    for at, char in enumerate(text):
        shown += matcher.push(char)
        if matcher.matched is not None:
            break
        assert at + 1 - len(shown) <= max(map(len, stops)) - 1


def test_text_that_can_begin_no_match_is_shown_at_once():
    matcher = StopMatcher(build(["END"]))
    assert matcher.push("hello") == "hello"
    assert matcher.push(" E") == " "
    assert matcher.push("N") == ""
    assert matcher.push("T") == "ENT"


def test_a_match_inside_one_piece_ends_the_text_before_it():
    matcher = StopMatcher(build(["</s>"]))
    assert matcher.push("a</s>b") == "a"
    assert matcher.matched == "</s>"


def test_a_string_inside_another_is_found_when_it_is_complete():
    matcher = StopMatcher(build(["abcd", "bc"]))
    assert matcher.push("abcd") == "a"
    assert matcher.matched == "bc"
