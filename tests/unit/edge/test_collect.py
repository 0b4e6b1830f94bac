"""Collected pieces are whole choices."""

import random

from hypothesis import given
from hypothesis import strategies as st

from router.edge.collect import Collector
from router.request import Ended, Piece

TEXTS = st.lists(st.lists(st.text(max_size=4), min_size=1, max_size=5), min_size=1, max_size=4)


@given(texts=TEXTS, order=st.randoms())
def test_each_choice_comes_once_whole_in_whatever_order_pieces_come(
    texts: list[list[str]], order: random.Random
) -> None:
    left = {index: list(enumerate(pieces)) for index, pieces in enumerate(texts)}
    collector, got = Collector(), {}
    while left:
        index = order.choice(sorted(left))
        number, text = left[index].pop(0)
        ended = None if left[index] else Ended(reason="stop")
        whole = collector.add(Piece(index=index, text=text, tokens=(number,), ended=ended))
        assert (whole is None) == bool(left[index])
        if whole is not None:
            assert index not in got
            got[index] = whole
            del left[index]
    for index, pieces in enumerate(texts):
        assert got[index].text == "".join(pieces)
        assert got[index].tokens == tuple(range(len(pieces)))
        assert got[index].ended == Ended(reason="stop")
