"""Joins the pieces of each choice until it has ended: for answers that are told whole."""

from dataclasses import dataclass, field

from router.request import Ended, Logprobs, Piece, PromptRows


@dataclass(slots=True)
class _Parts:
    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    echo: str = ""
    prompt: PromptRows | None = None

    def add(self, piece: Piece) -> None:
        self.texts.append(piece.text)
        self.tokens.extend(piece.tokens)
        self.logprobs.extend(piece.logprobs)
        self.echo += piece.echo
        self.prompt = self.prompt or piece.prompt

    def joined(self, index: int, ended: Ended) -> Piece:
        return Piece(
            index=index,
            text="".join(self.texts),
            tokens=tuple(self.tokens),
            logprobs=tuple(self.logprobs),
            ended=ended,
            echo=self.echo,
            prompt=self.prompt,
        )


class Collector:
    """Takes pieces in order; gives each choice once, whole, with its last piece."""

    def __init__(self) -> None:
        self._parts: dict[int, _Parts] = {}

    def add(self, piece: Piece) -> Piece | None:
        """The whole choice if `piece` ends it."""
        parts = self._parts.setdefault(piece.index, _Parts())
        parts.add(piece)
        if piece.ended is None:
            return None
        del self._parts[piece.index]
        return parts.joined(piece.index, piece.ended)
