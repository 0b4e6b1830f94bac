"""Loading a bundle, templates, and the promise that none of it needs torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models

from router.request import ChatPrompt, Message, TextPrompt, TokenPrompt
from router.text.template import ChatTemplate
from router.text.threads import TextThreads
from router.text.tokenizer import MAX_CHARACTERS, load
from shared.errors import Internal, InvalidRequest, RequestTooLarge
from tests.fakes import tiny_tokenizers

ROOT = Path(__file__).parents[3]
CHAT = (Message(role="user", content="hi"), Message(role="assistant", content="yo"))


def text(template: str | None = tiny_tokenizers.TEMPLATE):
    return load(tiny_tokenizers.bundle(template=template).files)


def test_a_chat_is_rendered_as_its_template_writes_it():
    model = text()
    rendered = model.render(ChatPrompt(messages=CHAT), "messages")
    assert rendered == ("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n<|im_start|>assistant\n")
    ids = model.encode(ChatPrompt(messages=CHAT))
    assert model.decode(ids, skip_special_tokens=False) == rendered
    assert ids[0] == 1


def test_a_rendering_equals_that_of_transformers():
    transformers = pytest.importorskip("transformers.utils.chat_template_utils")
    source = (
        "{{ bos_token }}{%- for m in messages -%}\n  {% if loop.first %}[{{ m['role'] | upper }}]{% endif %}\n"
        "{% generation %}{{ m.content | trim }}{% endgeneration %}\n{{ {'é': '<'} | tojson }}"
        "{% if not loop.last %}{% continue %}{% endif %}!{%- endfor %}"
    )
    messages = [{"role": m.role, "content": m.content} for m in CHAT]
    theirs, _ = transformers.render_jinja_template([messages], chat_template=source, bos_token="<s>")
    assert ChatTemplate(source, {"bos_token": "<s>"}).render(CHAT, add_generation_prompt=False) == theirs[0]


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('never') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages[99].content.x }}",
        "{{ 1 / 0 }}",
        "{% for i in range(100001) %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_a_template_that_fails_or_reaches_out_is_the_requests_fault(source):
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate(source, {}).render(CHAT, add_generation_prompt=True, param="messages")
    assert caught.value.param == "messages"


def test_a_role_that_the_template_refuses_names_messages():
    with pytest.raises(InvalidRequest, match="no banned") as caught:
        text().encode(ChatPrompt(messages=(Message(role="banned", content=""),)), param="messages")
    assert caught.value.param == "messages"


def test_a_model_without_a_template_refuses_chats_only():
    model = text(template=None)
    with pytest.raises(InvalidRequest, match="no chat template"):
        model.encode(ChatPrompt(messages=CHAT), param="messages")
    assert model.encode(TextPrompt(text="hi"))


def test_a_template_that_is_none_leaves_the_model_its_completions():
    model = text(template="{% for m in messages %}{{ m.content }}")
    with pytest.raises(InvalidRequest, match="cannot be used: line 1: Unexpected end of template") as caught:
        model.encode(ChatPrompt(messages=CHAT), param="messages")
    assert caught.value.param == "messages"
    assert model.encode(TextPrompt(text="hi"))


def test_what_a_template_raises_is_told_in_part_alone():
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate("{{ raise_exception(messages[0].content) }}", {}).render(
            (Message(role="user", content="x" * 100_000),), add_generation_prompt=True
        )
    assert len(caught.value.message) < 400


def test_a_tokenizer_json_on_which_the_library_panics_is_a_value_error():
    files = dict(tiny_tokenizers.bundle().files)
    content = json.loads(files["tokenizer.json"])
    content["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    with pytest.raises(ValueError, match="panic"):
        load({**files, "tokenizer.json": json.dumps(content).encode()})


async def test_a_text_on_which_the_library_panics_fails_alone():
    """A special token that the post-processor does not know is a real panic, and only where special tokens are added."""
    files = dict(tiny_tokenizers.bundle().files)
    content = json.loads(files["tokenizer.json"])
    single = [{"SpecialToken": {"id": "<none>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    content["post_processor"] = {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {}}
    model, threads = load({**files, "tokenizer.json": json.dumps(content).encode()}), TextThreads()
    for _ in range(3):
        with pytest.raises(Internal, match="the model's tokenizer failed on this text"):
            await threads.encode(model, TextPrompt(text="Hello"))
        assert await threads.encode(model, TextPrompt(text="Hello"), add_special_tokens=False)
    threads.close()


async def test_a_text_with_a_character_that_the_tokenizer_has_no_token_for_fails_alone():
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[], unk_token="<unk>"))
    tokenizer.decoder = decoders.ByteLevel()
    model, threads = load(tiny_tokenizers.bundle(tokenizer).files), TextThreads()
    assert await threads.encode(model, TextPrompt(text="abba")) == [0, 1, 1, 0]
    with pytest.raises(Internal):
        await threads.encode(model, TextPrompt(text="abc"))
    assert await threads.encode(model, TextPrompt(text="b")) == [1]
    threads.close()


def test_special_tokens_are_added_to_text_as_its_tokenizer_does():
    model = load(tiny_tokenizers.bundle(tiny_tokenizers.sentencepiece()).files)
    assert model.encode(TextPrompt(text="Hello"))[0] == 1
    assert model.encode(TextPrompt(text="Hello"), add_special_tokens=False)[0] != 1
    assert model.encode(TokenPrompt(tokens=(7, 8))) == [7, 8]


def test_text_beyond_the_bound_is_refused_before_it_is_tokenized():
    with pytest.raises(RequestTooLarge) as caught:
        text().encode(TextPrompt(text="x" * (MAX_CHARACTERS + 1)), param="prompt")
    assert caught.value.param == "prompt"


def test_half_a_surrogate_pair_is_the_callers_fault():
    with pytest.raises(InvalidRequest):
        text().encode(TextPrompt(text="\ud83d"))


def test_a_tokenizer_loads_renders_and_encodes_without_torch_though_it_is_installed():
    pytest.importorskip("torch")
    program = (
        "import sys\n"
        "from tests.fakes import tiny_tokenizers\n"
        "from router.text.tokenizer import load\n"
        "from router.request import ChatPrompt, Message\n"
        "import router.assemble\n"
        "model = load(tiny_tokenizers.bundle().files)\n"
        "ids = model.encode(ChatPrompt(messages=(Message(role='user', content='hi'),)))\n"
        "assert ids and model.decode(ids, skip_special_tokens=True)\n"
        "print(sorted(m for m in ('torch', 'transformers', 'worker') if m in sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
