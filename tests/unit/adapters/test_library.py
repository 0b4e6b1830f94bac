"""What a name means while its files are read, replaced and unloaded at the same time; and what is left when all is gone."""

import asyncio
import shutil
import threading
from contextlib import asynccontextmanager

import pytest

from tests.fakes import adapters as fakes
from tests.fakes.scripted_worker import until
from tests.unit.adapters.test_memory import NoDevice, NoEngine, ignore
from worker.adapters import watch
from worker.adapters.directory import find
from worker.adapters.errors import AdapterNotFound
from worker.adapters.library import Library
from worker.adapters.version import AdapterParts
from worker.adapters.watch import DirectoryWatch


class Engine(NoEngine):
    """Remembers what is pinned."""

    def __init__(self):
        self.pinned = set()

    def forget_adapter(self, digest):
        self.pinned.discard(digest)

    def pin_adapter(self, digest, pinned):
        (self.pinned.add if pinned else self.pinned.discard)(digest)


@asynccontextmanager
async def library(root=None, engine=None):
    reader = fakes.CountingReader()
    parts = AdapterParts(slots=4, host_bytes=1 << 20, read=reader, device=NoDevice(), directory=root)
    made = Library(parts, engine or NoEngine(), ignore)
    made.reader = reader
    try:
        yield made
    finally:
        reader.gate.set()
        assert await made.close(10)


def digest(path):
    return fakes.CountingReader()(path, 1 << 20).digest


async def begun(made, reads):
    await until(lambda: len(made.reader.reads) == reads, "the read to begin")


async def test_a_read_that_began_before_a_name_was_replaced_does_not_bring_back_what_it_read(tmp_path):
    first, second = fakes.write(tmp_path / "root" / "a"), fakes.write(tmp_path / "second", seed=1)
    async with library(tmp_path / "root") as made:
        staged = await made.load("a", str(second), replace=True, pin=False, stage=True)
        look = DirectoryWatch(made, tmp_path / "root", 60)
        await look.look()
        made.reader.gate.clear()
        survey = asyncio.create_task(made.survey(made.catalog.entries["a"]))
        asked = asyncio.create_task(made.have("a"))
        await begun(made, 2)
        info = await made.load("a", str(second), replace=True, pin=False, digest=staged.digest)
        made.reader.gate.set()
        await asyncio.gather(survey, return_exceptions=True)
        assert (await asked).digest == info.digest == digest(second) != digest(first)
        entry = made.catalog.entries["a"]
        assert (entry.held.digest, entry.source, entry.error) == (digest(second), str(second), None)


async def test_a_read_that_fails_after_a_name_was_replaced_says_nothing_of_the_new_version(tmp_path):
    fakes.write(tmp_path / "root" / "a", rank=99)
    second = fakes.write(tmp_path / "second", seed=1)
    async with library(tmp_path / "root") as made:
        staged = await made.load("a", str(second), replace=True, pin=False, stage=True)
        await DirectoryWatch(made, tmp_path / "root", 60).look()
        made.reader.gate.clear()
        survey = asyncio.create_task(made.survey(made.catalog.entries["a"]))
        await begun(made, 2)
        await made.load("a", str(second), replace=True, pin=False, digest=staged.digest)
        made.reader.gate.set()
        await asyncio.gather(survey, return_exceptions=True)
        assert made.catalog.entries["a"].error is None


async def test_files_that_change_while_their_former_bytes_are_read_are_read_again(tmp_path):
    """The reader holds the old file open; the directory is looked at before it is done."""
    path = fakes.write(tmp_path / "root" / "a")
    async with library(tmp_path / "root") as made:
        look = DirectoryWatch(made, tmp_path / "root", 60)
        await look.look()
        real, opened, go_on = made._parts.read, threading.Event(), threading.Event()

        def slow(directory, most):
            version = real(directory, most)
            opened.set()
            assert go_on.wait(30)
            return version

        object.__setattr__(made._parts, "read", slow)
        asked = asyncio.create_task(made.have("a"))
        assert await asyncio.to_thread(opened.wait, 30)
        shutil.rmtree(path)
        fakes.write(path, seed=1)
        looked = asyncio.create_task(look.look())  # its turn comes when the thread is free
        await asyncio.sleep(0)
        made.relist(made.catalog.entries["a"], watch.scan(tmp_path / "root")["a"])
        go_on.set()
        await looked
        assert (await asked).digest == digest(path)


async def test_a_name_that_is_unloaded_while_it_is_read_does_not_come_back(tmp_path):
    fakes.write(tmp_path / "root" / "a")
    async with library(tmp_path / "root") as made:
        await DirectoryWatch(made, tmp_path / "root", 60).look()
        made.reader.gate.clear()
        asked = asyncio.create_task(made.have("a"))
        await begun(made, 1)
        await made.unload("a")
        made.reader.gate.set()
        with pytest.raises(AdapterNotFound):
            await asked
        assert (made.catalog.entries, made.catalog.versions) == ({}, {})


async def test_a_name_that_is_listed_while_it_is_read_on_demand_is_read_once(tmp_path):
    path = fakes.write(tmp_path / "root" / "a")
    async with library(tmp_path / "root") as made:
        made.reader.gate.clear()
        asked = asyncio.create_task(made.have("a"))
        await begun(made, 1)
        made.list(made.entry_of(find(tmp_path / "root", "a")))
        later = asyncio.create_task(made.have("a"))
        survey = asyncio.create_task(made.survey(made.catalog.entries["a"]))
        await asyncio.sleep(0)
        made.reader.gate.set()
        assert (await asked) is (await later)
        await survey
        assert (await asked).digest == digest(path)
        assert len(made.reader.reads) == 1
        made.catalog.check_integrity()


async def test_a_name_that_is_listed_and_unloaded_while_it_is_read_on_demand_does_not_come_back(tmp_path):
    fakes.write(tmp_path / "root" / "a")
    async with library(tmp_path / "root") as made:
        made.reader.gate.clear()
        asked = asyncio.create_task(made.have("a"))
        await begun(made, 1)
        made.list(made.entry_of(find(tmp_path / "root", "a")))
        await made.unload("a")
        made.reader.gate.set()
        with pytest.raises(AdapterNotFound):
            await asked
        assert (made.catalog.entries, made.catalog.versions) == ({}, {})


async def test_what_a_name_meant_goes_on_while_a_file_of_the_next_version_is_missing(tmp_path):
    path = fakes.write(tmp_path / "root" / "a")
    async with library(tmp_path / "root") as made:
        look = DirectoryWatch(made, tmp_path / "root", 60)
        await look.look()
        old = await made.have("a")
        (path / "adapter_model.safetensors").unlink()
        await look.look()
        with pytest.raises(AdapterNotFound):
            await made.survey(made.catalog.entries["a"])
        assert await made.have("a") is old
        assert "no adapter_model.safetensors" in str(made.catalog.entries["a"].error)
        fakes.write(path, seed=1)
        await look.look()
        assert (await made.have("a")).digest == digest(path) != old.digest


@pytest.mark.parametrize("how", ["replace", "unload"])
async def test_a_pin_goes_with_its_name_where_another_name_means_the_same_version(tmp_path, how):
    first, second = fakes.write(tmp_path / "1"), fakes.write(tmp_path / "2", seed=1)
    engine = Engine()
    async with library(engine=engine) as made:
        shared = await made.load("plain", str(first), replace=False, pin=False)
        await made.load("pinned", str(first), replace=False, pin=True)
        assert engine.pinned == {shared.digest}
        if how == "replace":
            new = await made.load("pinned", str(second), replace=True, pin=False)
            assert engine.pinned == {new.digest}
        else:
            await made.unload("pinned")
            assert engine.pinned == set()
        made.catalog.check_integrity()


async def test_names_that_are_gone_leave_nothing(tmp_path):
    path = fakes.write(tmp_path / "root" / "a")
    async with library(tmp_path / "root") as made:
        look = DirectoryWatch(made, tmp_path / "root", 60)
        for number in range(20):
            await made.load(f"n{number}", str(path), replace=False, pin=False)
            await made.unload(f"n{number}")
            with pytest.raises(AdapterNotFound):
                await made.unload(f"never-there-{number}")
        await look.look()
        await made.unload("a")
        assert set(made.unloaded) == {"a"}
        shutil.rmtree(path)
        await look.look()
        assert (len(made._locks), made.unloaded, made.catalog.versions, made.catalog.used) == (0, {}, {}, 0)


async def test_a_fault_in_looking_at_the_directory_does_not_end_the_watching(tmp_path, monkeypatch):
    (tmp_path / "root").mkdir()
    real, looks = watch.scan, []

    def scan(root):
        looks.append(root)
        if len(looks) < 3:
            raise RuntimeError("a fault of ours")
        return real(root)

    monkeypatch.setattr(watch, "scan", scan)
    async with library(tmp_path / "root") as made:
        look = DirectoryWatch(made, tmp_path / "root", 0.001)
        running = asyncio.create_task(look.run())
        await asyncio.wait_for(look.looked.wait(), 30)
        fakes.write(tmp_path / "root" / "a")
        await until(lambda: "a" in made.catalog.entries, "the adapter to be found")
        running.cancel()


async def test_what_is_far_and_does_not_come_holds_up_nothing_that_is_here(tmp_path, monkeypatch):
    path, go_on = fakes.write(tmp_path / "a"), threading.Event()
    async with library() as made:
        real = made._parts.read

        def read(directory, most):
            if directory != path:
                assert go_on.wait(30)
            return real(directory, most)

        object.__setattr__(made._parts, "read", read)
        far = asyncio.create_task(made.load("far", f"file://{path}", replace=False, pin=False))
        here = await asyncio.wait_for(made.load("here", str(path), replace=False, pin=False), 30)
        assert not far.done()
        go_on.set()
        assert (await far).digest == here.digest
