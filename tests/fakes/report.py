"""Someone who is told what a supervisor does."""

from dataclasses import dataclass, field


@dataclass
class Told:
    """A Report that keeps everything."""

    states: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    lines: list[tuple[str, str]] = field(default_factory=list)

    def state(self, text: str) -> None:
        self.states.append(text)

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def log(self, name: str, line: str) -> None:
        self.lines.append((name, line))
