"""The event loop goes on while a long text is tokenized."""

import asyncio

from router.request import ChatPrompt, Message, TextPrompt
from router.text.threads import TextThreads
from router.text.tokenizer import load
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
    ids = await threads.encode(load(tiny_tokenizers.bundle().files), TextPrompt(text=LONG[:500] + "<|im_end|>"))
    assert ids == tokenizer.encode(LONG[:500] + "<|im_end|>").ids
    threads.close()
