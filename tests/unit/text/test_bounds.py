"""Templates that would not end do, and all others are as they were."""

import itertools
from collections.abc import Callable

import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.request import Message
from router.text.bounds import MAX_EXPONENT, MAX_PRODUCT, BoundedEnvironment, OutOfBounds
from router.text.template import ChatTemplate
from shared.errors import InvalidRequest

DEEP = [{"name": "a", "children": [{"name": "b", "children": []}, {"name": "c", "children": []}]}]
PLAIN = (
    "{% for x in xs %}{{ loop.index }}/{{ loop.length }}{{ x }}{% if not loop.last %},{% endif %}{% endfor %}",
    "{% for x in xs if x % 2 %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in [] %}{{ x }}{% else %}none{% endfor %}",
    "{% for x in xs %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{{ loop.previtem }}{{ loop.nextitem }}{% endfor %}",
    "{% for x in xs %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in d %}{{ k }}{{ loop.cycle('odd', 'even') }}{% endfor %}",
    "{% for x in 'text' %}{{ x }}.{% endfor %}{% for x in missing %}{{ x }}{% endfor %}",
    "{% for node in deep recursive %}{{ node.name }}({{ loop(node.children) }}){% endfor %}",
    "{% set ns = namespace(n=0) %}{% for x in xs %}{% for y in xs %}{% set ns.n = ns.n + x * y %}{% endfor %}{% endfor %}{{ ns.n }}",
    "{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{% for x in xs %}{{ twice(x) }}{% endfor %}{{ '-' * 9 }}{{ 2 ** 10 }}",
    "{{ xs | map('string') | join('+') }}{% for x in xs | reverse %}{{ x }}{% endfor %}{% for x in range(3) %}{{ x }}{% endfor %}",
)
ENDLESS = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}",
    "{% for a in range(99999) %}{% for b in a | string | list %}{{ '' }}{% endfor %}{% endfor %}",
)


def ticking() -> Callable[[], float]:
    """A clock that goes on by a millisecond each time it is looked at."""
    times = itertools.count()
    return lambda: next(times) / 1000


@pytest.mark.parametrize("source", PLAIN)
def test_a_template_that_ends_renders_as_without_bounds(source: str) -> None:
    extensions = ["jinja2.ext.loopcontrols"]
    given = {"xs": [1, 2, 3, 4], "d": {"one": 1, "two": 2}, "deep": DEEP}
    environment = BoundedEnvironment(extensions=extensions)
    with environment.bounded():
        ours = environment.from_string(source).render(**given)
    assert ours == ImmutableSandboxedEnvironment(extensions=extensions).from_string(source).render(**given)


@pytest.mark.parametrize("source", ENDLESS)
def test_a_template_that_would_not_end_is_stopped(source: str) -> None:
    environment = BoundedEnvironment(clock=ticking())
    with environment.bounded(), pytest.raises(OutOfBounds, match="takes longer"):
        environment.from_string(source).render()


@pytest.mark.parametrize(
    "source",
    [
        f"{{{{ 'ab' * {MAX_PRODUCT} }}}}",
        f"{{{{ {MAX_PRODUCT} * x }}}}",
        f"{{{{ [1, 2] * {MAX_PRODUCT} }}}}",
        f"{{{{ 9 ** {MAX_EXPONENT + 1} }}}}",
    ],
)
def test_a_step_that_would_make_too_much_is_not_taken(source: str) -> None:
    environment = BoundedEnvironment()
    with environment.bounded(), pytest.raises(jinja2.TemplateError):
        environment.from_string(source).render(x="ab")


def test_each_rendering_has_its_own_time() -> None:
    environment = BoundedEnvironment(clock=ticking())
    template = environment.from_string("{% for x in range(1500) %}{% endfor %}done")
    for _ in range(5):
        with environment.bounded():
            assert template.render() == "done"


def test_a_conversation_on_which_a_template_loops_is_refused_by_name() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{{ '' * 1 }}{% if m.content == 'loop' %}" + ENDLESS[0] + "{% endif %}{% endfor %}ok", {}
    )
    with pytest.raises(InvalidRequest, match="takes longer") as refused:
        template.render([Message(role="user", content="loop")], add_generation_prompt=True)
    assert refused.value.param == "messages"
    assert template.render([Message(role="user", content="hi")], add_generation_prompt=True) == "ok"
