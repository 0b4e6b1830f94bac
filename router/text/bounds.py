"""A sandbox whose templates end, as far as it can see to that; see template_child for what ends all others.

Time is looked at in each turn of a loop and at each call, which is all that a template can repeat; Jinja bounds ranges itself. A product
of a text or a list, which takes one step however large it is, is bounded by size.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_SECONDS = 2.0  # of a CPU, for one rendering; a long conversation takes some hundredths
MAX_PRODUCT = 1 << 22  # characters or entries
MAX_EXPONENT = 256

_FILTER = "_bounded"  # no template can name it: it is put in after parsing


class OutOfBounds(jinja2.TemplateError):
    """A rendering that takes too long, or makes too much."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Render inside `bounded`. One environment may render in several threads at a time."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, *, clock: Callable[[], float] = time.thread_time, **options: Any):
        super().__init__(**options)
        self._clock = clock
        self._local = threading.local()
        self.filters[_FILTER] = self._turns

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """What is rendered inside, by this thread, raises OutOfBounds after MAX_SECONDS."""
        self._local.end = self._clock() + MAX_SECONDS
        try:
            yield
        finally:
            del self._local.end

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Every loop iterates over `_turns` of what it would iterate over."""
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, _FILTER, [], [], None, None, lineno=loop.lineno)
        return tree

    def _turns(self, values: Iterable[Any]) -> Iterator[Any]:
        for value in values:
            self._check()
            yield value

    def _check(self) -> None:
        end = getattr(
            self._local, "end", None
        )  # constants are folded when a template is compiled, outside of any rendering
        if end is not None and self._clock() > end:
            raise OutOfBounds(f"it takes longer than {MAX_SECONDS:g} s")

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """A call that a template makes."""
        self._check()
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`left * right` or `left ** right`."""
        if operator == "**" and isinstance(right, int) and right > MAX_EXPONENT:
            raise OutOfBounds(f"an exponent of {right}")
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(other, int) and isinstance(one, str | list | tuple) and len(one) * other > MAX_PRODUCT:
                    raise OutOfBounds(f"a product of {len(one) * other} entries")
        return super().call_binop(context, operator, left, right)
