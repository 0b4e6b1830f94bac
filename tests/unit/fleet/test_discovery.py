"""Where workers are: what an address is, what a name's addresses and a file's lines come to, and what does not change them."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from router.fleet.discovery import MOST_BYTES, Filed, Named, Source, where
from router.fleet.targets import BadFile, Targets, joined, parse, split_target
from tests.fakes.scripted_worker import until

QUICK = 0.002


@pytest.mark.parametrize(
    ("target", "parts"),
    [("a:1", ("a", 1)), ("10.0.0.7:50061", ("10.0.0.7", 50061)), ("[::1]:65535", ("::1", 65535))],
)
def test_host_and_port(target: str, parts: tuple[str, int]) -> None:
    assert split_target(target) == parts


@pytest.mark.parametrize(
    "target",
    [
        "",
        "a",
        ":5",
        "a:",
        "a:0",
        "a:65536",
        "a:-1",
        "a:٣",
        "::1:5",
        "a b:5",
        "http://a:5",
        "a?b:5",
        "\ufeffa:5",
        "a\0:5",
    ],
)
def test_what_is_no_address(target: str) -> None:
    with pytest.raises(ValueError, match=r"host:port|from 1 to 65535"):
        split_target(target)


def test_addresses_of_both_kinds_are_written_as_channels_take_them() -> None:
    assert (joined("10.0.0.7", 5), joined("fe80::1%eth0", 5)) == ("10.0.0.7:5", "[fe80::1%eth0]:5")
    with pytest.raises(ValueError, match="name"):
        joined("name", 5)


def test_a_file_has_an_address_a_line_and_remarks() -> None:
    assert parse("# the first rack\na:1\n\n  b:2  # the second\na:1\n") == ("a:1", "b:2")
    assert parse("") == ()


def test_every_bad_line_is_named() -> None:
    with pytest.raises(BadFile, match=r"line 1: 'a'.*line 3: .*'b:0'"):
        parse("a\nc:3\nb:0\n")


def test_a_list_may_hold_names() -> None:
    found = where(["a:1", "dns:///workers:50061", "a:1"], Path("workers"))
    assert found.fixed == ("a:1",)
    assert [type(source) for source in found.sources] == [Named, Filed]
    for mistake in ("dns:workers:50061", "dns://workers:50061", "http://a:5"):
        with pytest.raises(ValueError, match=r"is not host:port, nor dns:///name:port"):
            where([mistake])
    with pytest.raises(ValueError, match="host:port"):
        where(["dns:///workers"])


@asynccontextmanager
async def followed(source: Source) -> AsyncIterator[list[Targets]]:
    """What it tells."""
    told: list[Targets] = []
    task = asyncio.create_task(source.follow(told.append))
    try:
        yield told
    finally:
        task.cancel()
        await asyncio.wait([task])


class Names:
    """A resolver. `answer` is what it gives, or raises; `asked` how often."""

    def __init__(self, answer: Sequence[str] | Exception):
        self.answer = answer
        self.asked = 0

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def again(self) -> None:
        """Until it has been asked twice more."""
        before = self.asked
        await until(lambda: self.asked >= before + 2, "another look")


async def test_a_name_is_looked_up_again_and_tells_what_changes() -> None:
    names = Names(["10.0.0.2", "10.0.0.1", "10.0.0.2"])
    async with followed(Named("workers", 5, QUICK, names)) as told:
        await names.again()
        names.answer = ["10.0.0.1", "10.0.0.2"]  # the same in another order
        await names.again()
        names.answer = ["10.0.0.1", "::1"]
        await until(lambda: len(told) == 2, "the change")
    assert told == [("10.0.0.1:5", "10.0.0.2:5"), ("10.0.0.1:5", "[::1]:5")]


@pytest.mark.parametrize("trouble", [OSError("no such name"), [], ["no address"], UnicodeError("label too long")])
async def test_a_name_that_cannot_be_looked_up_keeps_its_workers_and_says_so_once(
    trouble: Sequence[str] | Exception, caplog: pytest.LogCaptureFixture
) -> None:
    names = Names(["10.0.0.1"])
    async with followed(Named("workers", 5, QUICK, names)) as told:
        await until(lambda: told, "the addresses")
        names.answer = trouble
        await names.again()
        names.answer = ["10.0.0.3"]
        await until(lambda: len(told) == 2, "the new one")
    assert told == [("10.0.0.1:5",), ("10.0.0.3:5",)]
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1


async def test_a_file_is_read_again_and_bad_lines_change_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "workers"
    async with followed(Filed(path, QUICK)) as told:
        await until(lambda: caplog.records, "the missing file to be told")
        path.write_text("a:1\nb:2\n")
        await until(lambda: told, "the file")
        path.write_text("a:1\nb\n")
        await until(lambda: "line 2" in caplog.text, "the bad line to be told")
        path.unlink()
        await until(lambda: caplog.text.count("No such file") == 2, "the file to be missed")
        path.write_text("c:3\n")
        await until(lambda: len(told) == 2, "the new one")
    assert told == [("a:1", "b:2"), ("c:3",)]
    assert caplog.text.count("line 2") == 1


@pytest.mark.parametrize("kind", ["pipe", "directory", "device", "huge"])
async def test_what_is_no_file_of_workers_holds_nothing_up(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path("/dev/zero") if kind == "device" else tmp_path / "workers"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case "huge":
            path.write_text("a:1\n" * (MOST_BYTES // 4) + "b")
    async with followed(Filed(path, QUICK)) as told:
        await until(lambda: "stay as they were" in caplog.text, "the trouble to be told")
        if kind != "device":
            (path.rmdir if kind == "directory" else path.unlink)()
            path.write_text("a:1\n" * (MOST_BYTES // 4))
            await until(lambda: told, "the file")
            assert told == [("a:1",)]


async def test_a_remark_that_changes_with_each_look_keeps_no_worker_back(tmp_path: Path) -> None:
    path, looks = tmp_path / "workers", 0

    class Stamped(Filed):
        def _read(self) -> str | None:
            nonlocal looks
            looks += 1
            listed = "a:1" if looks < 4 else "a:1\nb:2" if looks < 9 else ""
            return f"# written at {looks}\n{listed}\n"

    async with followed(Stamped(path, QUICK)) as told:
        await until(lambda: looks > 16, "some looks")
    assert told == [("a:1",), ("a:1", "b:2")]  # and nothing is taken for no workers that may be only begun


async def test_half_of_a_file_is_not_taken_for_all(tmp_path: Path) -> None:
    path, looks = tmp_path / "workers", 0
    texts = ["a:1\nb:2\n", "a:1\n", "a:1\nb:2\n", "a:1\nb:2\n"]

    class Written(Filed):
        def _read(self) -> str | None:
            nonlocal looks
            looks += 1
            return texts[min(looks, len(texts)) - 1]

    async with followed(Written(path, QUICK)) as told:
        await until(lambda: looks > 6, "some looks")
    assert told == [("a:1", "b:2")]
