"""A version that is read before its name is to mean it, and loads that name the version they mean."""

from dataclasses import replace

import grpc
import pytest

from protos import worker_pb2 as pb
from shared.wire.adapters import adapter_info_from_pb
from tests.fakes import adapters as fakes
from tests.fakes.adapter_bench import Bench, bench, code_of, refusal
from tests.fakes.scripted_worker import until
from worker.adapters import staged


def entry(b: Bench, name: str):
    return b.service.info(name)


async def test_what_is_staged_changes_nothing_and_is_bound_without_a_second_read(tmp_path):
    async with bench(tmp_path, scanned=False) as b:
        old, new = (fakes.write(tmp_path / str(seed), seed=seed) for seed in range(2))
        was = await b.load("a", old)
        info = await b.load("a", new, replace=True, stage=True)
        assert (entry(b, "a").digest, entry(b, "a").source) == (was.digest, str(old))
        assert info.digest != was.digest
        reads = b.service.library.reads
        told = await b.load("a", new, replace=True, digest=info.digest)
        assert (told.digest, b.service.library.reads) == (info.digest, reads)
        await b.ends(await b.submit(adapter_name="a"), info.digest)
        await b.unload("a")
        await until(lambda: not b.device.there, "an empty slot")
        b.nothing_is_left()


async def test_what_nobody_binds_leaves_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(staged, "SECONDS", 0.05)
    async with bench(tmp_path, scanned=False) as b:
        source = fakes.write(tmp_path / "a")
        info = await b.load("a", source, stage=True)
        await b.load("a", source, stage=True)
        assert entry(b, "a") is None
        assert info.digest
        await until(lambda: not b.service.library.catalog.used, "an empty memory")
        b.nothing_is_left()
        again = await b.load("a", source, digest=info.digest)  # too late is only slower
        assert again.digest == info.digest


async def test_a_source_that_holds_another_version_than_was_meant_is_not_taken(tmp_path):
    async with bench(tmp_path, scanned=False) as b:
        source = fakes.write(tmp_path / "a")
        digest = (await b.load("a", source)).digest
        await b.unload("a")
        await until(lambda: not b.service.library.catalog.used, "an empty memory")
        fakes.write(tmp_path / "a", seed=1)
        error = await refusal(b.load("a", source, digest=digest))
        assert code_of(error) == ("UNAVAILABLE", "adapter_version_unavailable")
        assert entry(b, "a") is None


async def test_the_same_load_a_second_time_changes_and_reads_nothing(tmp_path):
    async with bench(tmp_path, scanned=False) as b:
        source = fakes.write(tmp_path / "a")
        info = await b.load("a", source)
        reads = b.service.library.reads
        assert await b.load("a", source, digest=info.digest) == info
        assert b.service.library.reads == reads


@pytest.mark.parametrize("change", ["another version", "pins"])
async def test_what_a_load_would_be_refused_for_its_stage_is(tmp_path, change):
    async with bench(tmp_path, scanned=False) as b:
        one, two = (fakes.write(tmp_path / str(seed), seed=seed) for seed in range(2))
        await b.load("a", one, pin=True)
        call = b.load("a", two, stage=True) if change == "another version" else b.load("b", two, stage=True, pin=True)
        expected = grpc.StatusCode.ALREADY_EXISTS if change == "another version" else grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await refusal(call)).code() is expected
        assert len(b.service.infos()) == 1


async def test_it_is_told_which_names_the_directory_has(tmp_path):
    async with bench(tmp_path) as b:
        fakes.write(b.root / "found")
        assert (await b.load("loaded", fakes.write(tmp_path / "b", seed=1))).listed is False
        assert (await b.load("found")).listed is True
        pinned = await b.stub.PinAdapter(pb.PinAdapterRequest(name="found", pinned=True))
        assert adapter_info_from_pb(pinned) == replace(entry(b, "found"), pinned=True)
