"""A template can end its own process at worst; what it renders is what it renders here."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from router.request import Message
from router.text.template import ChatTemplate
from router.text.template_process import TemplateProcess
from shared.errors import InvalidRequest
from tests.fakes.tiny_models import TEMPLATE

ROOT = Path(__file__).parents[3]
HELLO = (Message(role="user", content="Grüße, 🙂\n\u2028", name="x"), Message(role="assistant", content=""))
_NESTED = (
    "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(40) %}"
    "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}"
)

# One step each, in which Python looks at no clock and lets no other thread run.
ENDLESS = {
    "power": "{{ ((((10 ** 256) ** 256) ** 256) ** 4) % 7 }}",
    "nested": _NESTED + "{{ ns.x == ns.y }}",
    "lipsum": "{{ lipsum(messages | length * 1000000) | length }}",
}
LARGE = {
    "pads": "{{ ('x' + messages[0].role) | center(4000000000) | length }}",
    "formats": "{{ ('%4000000000d' % (messages | length)) | length }}",
    "doubles": "{% set ns = namespace(x='a') %}{% for i in range(36) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x | length }}",
    "nests": _NESTED + "{{ ns.x }}",
    "batches": "{{ messages | batch(2000000000, 'x') | list | length }}",
}
# What is worked out while the template is compiled.
FOLDED = {
    "pads": "{{ 'x' | center(4000000000) | length }}",
    "lipsum": "{{ lipsum(1) }}{{ [1] | batch(4000000000, 1) | list }}",
}


def render(template: TemplateProcess, content: str = "hi") -> str:
    return template.render([Message(role="user", content=content)], add_generation_prompt=True, param="messages")


def guarded(source: str) -> TemplateProcess:
    """One that does `source` when it is told to."""
    body = "{% if messages[0].content == 'go' %}" + source + "{% endif %}ok"
    return TemplateProcess(body, {}, cpu_seconds=0)


@pytest.mark.parametrize("header", [True, False])
def test_it_renders_what_the_template_renders(header: bool) -> None:
    source = "{{ bos_token }}{% for m in messages %}{{ m.name }}{{ m | tojson }}{% endfor %}" + TEMPLATE
    names = {"bos_token": "<s>"}
    here = ChatTemplate(source, names).render(HELLO, add_generation_prompt=header)
    assert TemplateProcess(source, names).render(HELLO, add_generation_prompt=header) == here


@pytest.mark.parametrize("source", [*ENDLESS.values(), *LARGE.values()], ids=[*ENDLESS, *LARGE])
def test_a_step_without_end_or_beyond_all_memory_is_the_requests_fault_and_the_next_conversation_renders(
    source: str,
) -> None:
    template = guarded(source)
    with pytest.raises(InvalidRequest) as refused:
        render(template, "go")
    assert refused.value.param == "messages"
    assert render(template) == "ok"


def test_other_threads_run_while_a_template_does_not_end() -> None:
    template, beats, over = guarded(ENDLESS["power"]), [], threading.Event()
    beating = threading.Thread(target=lambda: [beats.append(1) for _ in iter(lambda: over.wait(0.01), True)])
    beating.start()
    with pytest.raises(InvalidRequest):
        render(template, "go")
    over.set()
    beating.join()
    assert len(beats) >= 10


@pytest.mark.parametrize("source", FOLDED.values(), ids=FOLDED)
def test_what_is_large_before_there_is_a_conversation_is_refused_too(source: str) -> None:
    template = TemplateProcess(source, {}, cpu_seconds=0)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="template"):
            render(template)


@pytest.mark.parametrize("source", ["{% for", "{% break %}", "{{ x | nothing }}", "{% debug %}", "{{" + "(" * 5000])
def test_a_template_that_is_none_is_told_as_such_and_no_process_stays(source: str) -> None:
    template = TemplateProcess(source, {})
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="this model's chat template cannot be used") as refused:
            render(template)
        assert (refused.value.param, template.pid) == ("messages", None)


def test_a_process_that_the_system_ended_is_started_again() -> None:
    template = TemplateProcess("ok", {})
    assert template.pid is None
    for _ in range(3):
        assert render(template) == "ok"
        assert template.pid is not None
        os.kill(template.pid, signal.SIGKILL)


def test_a_process_leaves_with_the_router_that_started_it() -> None:
    program = (
        "import os\nfrom router.request import Message\nfrom router.text.template_process import TemplateProcess\n"
        "template = TemplateProcess('ok', {})\n"
        "template.render([Message(role='user', content='')], add_generation_prompt=True)\n"
        "print(template.pid, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    child = int(done.stdout)
    ended = threading.Event()
    for _ in range(1_000):
        if not _alive(child):
            return
        ended.wait(0.01)
    raise AssertionError("it outlived its router")


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
