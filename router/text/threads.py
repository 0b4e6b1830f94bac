"""Tokenizing away from the event loop: a long prompt takes longer than a loop may stand still."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from router.placement.prompt import PromptMarks, prompt_marks
from router.request import Prompt, TextPrompt, TokenPrompt
from router.text.badwords import spellings
from router.text.tokenizer import ModelText
from shared.errors import Internal, OctavoError
from shared.hashing import Chain

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

INLINE_TOKENS = 1_024  # hashed on the loop, in some 60 us
INLINE_CHARACTERS = 1_024  # tokenized on the loop: going to a thread and back costs a busy loop's turns, and the thread waits for Python


def contained(work: Callable[[], T]) -> Callable[[], T]:
    """`work`, of which nothing but OctavoErrors comes out. A panic of the tokenizers library is no Exception, and would end more than
    its own request.
    """

    def run() -> T:
        try:
            return work()
        except OctavoError:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is this request's trouble alone
            _LOG.error("a tokenizer or a template failed", exc_info=error)
            raise Internal("the model's tokenizer failed on this text") from None

    return run


class TextThreads:
    """A few threads for templates and tokenizers. Of the tokenizers library, only calls that let go of Python's lock are used."""

    def __init__(self, count: int = 2):
        self._pool = ThreadPoolExecutor(max_workers=count, thread_name_prefix="text")

    async def encode(
        self, text: ModelText, prompt: Prompt, *, add_special_tokens: bool | None = None, param: str = "prompt"
    ) -> Sequence[int]:
        """`ModelText.encode` in a thread; token ids and short texts need none."""
        if isinstance(prompt, TokenPrompt):
            return text.encode(prompt)

        def work() -> Sequence[int]:
            return text.encode(prompt, add_special_tokens=add_special_tokens, param=param)

        if isinstance(prompt, TextPrompt) and len(prompt.text) <= INLINE_CHARACTERS:
            return contained(work)()
        return await asyncio.get_running_loop().run_in_executor(self._pool, contained(work))

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` gives, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def bad_words(self, text: ModelText, strings: Sequence[str], *, param: str) -> tuple[tuple[int, ...], ...]:
        """`badwords.spellings` in a thread; no strings need none."""
        if not strings:
            return ()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, contained(lambda: spellings(text, strings, param)))

    async def decode(self, text: ModelText, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        """`ModelText.decode` in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._pool, contained(lambda: text.decode(tokens, skip_special_tokens=skip_special_tokens))
        )

    async def marks(self, chain: Chain, tokens: Sequence[int]) -> PromptMarks:
        """`prompt_marks`, in a thread where that takes longer than going there."""
        if len(tokens) <= INLINE_TOKENS:
            return prompt_marks(chain, tokens)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, prompt_marks, chain, tokens)

    def close(self) -> None:
        """Let the threads end; what still runs is waited for by nobody."""
        self._pool.shutdown(wait=False, cancel_futures=True)
