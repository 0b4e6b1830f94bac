"""Events reach clients that split lines at more than the standard's ends."""

import json

from hypothesis import given
from hypothesis import strategies as st

from router.edge.http.sse import event

ENDS = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"


@given(st.text(st.sampled_from('a\u00c2\u2027é😀\\"' + ENDS)))
def test_an_event_is_one_line_of_json_however_a_client_splits_lines(text: str) -> None:
    lines = event({"text": text}).decode().splitlines()
    assert [line for line in lines if line] == [lines[0]]
    assert json.loads(lines[0].removeprefix("data: ")) == {"text": text}
