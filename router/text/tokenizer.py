"""A model's tokenizer as the router loads it: tokenizer.json and a chat template, by the tokenizers library alone.

transformers would load the same files, but imports torch wherever torch is installed; the files are normalised by the worker, so that
tokenizer.json is the whole truth about text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from router.request import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from router.text.template_process import TemplateProcess
from router.text.vocabulary import Vocabulary, specials_of
from shared.errors import InvalidRequest, RequestTooLarge
from shared.tokenizer import CONFIGURATIONS, TOKENIZER_JSON, decoder_rules, json_object

MAX_CHARACTERS = 1 << 20  # of a prompt's text, before tokenizing
_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def _spelling(value: object) -> str | None:
    """A special token's string; configurations write it plain or as an object."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _special_names(files: Mapping[str, bytes]) -> dict[str, str]:
    merged = {key: value for name in CONFIGURATIONS for key, value in json_object(files, name).items()}
    spelled = {name: _spelling(merged.get(name)) for name in _NAMES}
    return {name: text for name, text in spelled.items() if text is not None}


def _template_source(files: Mapping[str, bytes]) -> str | None:
    """What is not UTF-8 is marked as such: where it matters, the model will not have been trained on it."""
    if "chat_template.jinja" in files:
        return files["chat_template.jinja"].decode("utf-8", "replace")
    given = json_object(files, "tokenizer_config.json").get("chat_template")
    if isinstance(given, list):  # several, named
        named = (entry for entry in given if isinstance(entry, Mapping) and entry.get("name") == "default")
        given = next((entry.get("template") for entry in named), None)
    return given if isinstance(given, str) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelText:
    """One tokenizer, ready for use from any thread."""

    tokenizer: Tokenizer
    vocabulary: Vocabulary
    template: TemplateProcess | None

    def render(self, prompt: ChatPrompt, param: str) -> str:
        """The conversation as the model's template writes it."""
        if self.template is None:
            raise InvalidRequest("this model has no chat template; use a completion instead", param=param)
        _check_size(sum(len(m.role) + len(m.content) + len(m.name) for m in prompt.messages), param)
        return self.template.render(prompt.messages, add_generation_prompt=prompt.add_generation_prompt, param=param)

    def encode(self, prompt: Prompt, *, add_special_tokens: bool | None = None, param: str = "prompt") -> Sequence[int]:
        """The prompt's token ids; token ids are taken as they are. None: special tokens for text, the template's own for a chat.

        Raises InvalidRequest naming `param`.
        """
        if isinstance(prompt, TokenPrompt):
            return list(prompt.tokens)
        if isinstance(prompt, TextPrompt):
            _check_size(len(prompt.text), param)
            return self._encode(prompt.text, add_special_tokens is not False, param)
        return self._encode(self.render(prompt, param), add_special_tokens is True, param)

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of token ids, standing alone."""
        return self.vocabulary.decode(tokens, skip_special=skip_special_tokens)

    def _encode(self, text: str, add_special_tokens: bool, param: str) -> Sequence[int]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"{param} holds half of a surrogate pair", param=param) from error
        # Only the batch calls let go of Python's lock: `encode` would hold up the event loop from any thread.
        (encoding,) = self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids


def _check_size(characters: int, param: str) -> None:
    if characters > MAX_CHARACTERS:
        message = f"{param} has {characters} characters, more than the {MAX_CHARACTERS} that are read"
        raise RequestTooLarge(message, param=param)


def load(files: Mapping[str, bytes]) -> ModelText:
    """The tokenizer of a bundle's files. Raises ValueError naming what is missing or not supported."""
    if TOKENIZER_JSON not in files:
        raise ValueError("the tokenizer has no tokenizer.json")
    rules = decoder_rules(files)
    tokenizer = _parsed(files[TOKENIZER_JSON].decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    vocabulary = Vocabulary(tokenizer=tokenizer, rules=rules, special=specials_of(tokenizer))
    return ModelText(tokenizer=tokenizer, vocabulary=vocabulary, template=_template(files))


def _parsed(text: str) -> Tokenizer:
    """The library's panics are no Exceptions, and would end more than this one tokenizer."""
    try:
        return Tokenizer.from_str(text)
    except (Exception, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a panic's class cannot be imported
        raise ValueError(f"tokenizer.json makes the tokenizers library panic: {error}") from None


def _template(files: Mapping[str, bytes]) -> TemplateProcess | None:
    """The template. Whether it is one shows when it is used: a model whose template is wrong can still complete text."""
    source = _template_source(files)
    return None if source is None else TemplateProcess(source, _special_names(files))
