"""The event loop goes on while a long text is tokenized."""

import asyncio
from dataclasses import replace

import pytest

from router.request import ChatPrompt, Message, TextPrompt
from router.text.threads import INLINE_CHARACTERS, TextThreads, contained
from router.text.tokenizer import load
from shared.errors import Internal, InvalidRequest
from tests.fakes import tiny_tokenizers

LONG = "Hello world, naïve café. " * 20_000


async def test_router_case_14_the_loop_turns_many_times_while_a_long_prompt_is_tokenized():
    model, threads = load(tiny_tokenizers.bundle().files), TextThreads()
    for prompt in (TextPrompt(text=LONG), ChatPrompt(messages=(Message(role="user", content=LONG),))):
        task = asyncio.create_task(threads.encode(model, prompt))
        turns = 0
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        assert turns > 100
        assert len(await task) > len(LONG) / 10
    threads.close()


async def test_what_a_thread_encodes_equals_the_librarys_own_encoding():
    tokenizer, threads = tiny_tokenizers.byte_level(), TextThreads()
    ids = await threads.encode(load(tiny_tokenizers.bundle().files), TextPrompt(text=LONG[:5_000] + "<|im_end|>"))
    assert ids == tokenizer.encode(LONG[:5_000] + "<|im_end|>").ids
    threads.close()


async def test_a_short_text_waits_for_no_thread_and_its_panic_is_still_its_own() -> None:
    model, threads = load(tiny_tokenizers.bundle().files), TextThreads()
    threads.close()  # whatever asks for one fails
    ids = await threads.encode(model, TextPrompt(text="Hello world"))
    assert ids == tiny_tokenizers.byte_level().encode("Hello world").ids
    with pytest.raises(RuntimeError):
        await threads.encode(model, TextPrompt(text="a" * (INLINE_CHARACTERS + 1)))
    broken = replace(model, tokenizer=Panicking())
    with pytest.raises(Internal, match="the model's tokenizer failed on this text"):
        await threads.encode(broken, TextPrompt(text="Hello world"))


class Panicking:
    """A tokenizer whose library panics."""

    def encode_batch_fast(self, texts: list[str], *, add_special_tokens: bool) -> list[object]:
        raise Panic(texts, add_special_tokens)


class Panic(BaseException):
    """As the tokenizers library's panics, which are no Exceptions."""


@pytest.mark.parametrize("trouble", [Panic("overflow"), RuntimeError("missing [UNK]"), MemoryError()])
async def test_a_tokenizer_that_fails_is_an_internal_error_of_its_request(trouble: BaseException) -> None:
    def fail() -> int:
        raise trouble

    loop = asyncio.get_running_loop()
    with pytest.raises(Internal, match="the model's tokenizer failed on this text"):
        await loop.run_in_executor(None, contained(fail))
    with pytest.raises(InvalidRequest):
        await loop.run_in_executor(None, contained(refuse))
    assert await loop.run_in_executor(None, contained(lambda: 7)) == 7


def refuse() -> int:
    raise InvalidRequest("no", param="prompt")
