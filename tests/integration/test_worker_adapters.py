"""Adapters over real streams and calls: named, loaded, replaced, unloaded and read on demand."""

import shutil
from functools import partial

import grpc
import pytest
import torch

from protos import worker_pb2 as pb
from shared.types import AbortReason, AdapterLevel, FinishReason
from shared.wire.adapters import MOST_LOADS
from shared.wire.worker import abort_to_pb
from tests.fakes import adapters as fakes
from tests.fakes.adapter_bench import bench, code_of, refusal
from tests.fakes.clock import FakeClock
from tests.fakes.engine import fake_worker, played_router, token_request
from tests.fakes.scripted_worker import until
from worker.events import AdapterStats
from worker.servicer.adapterloads import loads_of


async def test_a_batch_mixes_the_base_and_adapters(tmp_path):
    async with bench(tmp_path, scanned=False) as b:
        infos = [await b.load(f"a{seed}", fakes.write(tmp_path / str(seed), seed=seed)) for seed in range(3)]
        digests = [b"", *(info.digest for info in infos)]
        requests = [(await b.submit(adapter_digest=digest), digest) for digest in digests * 3]
        for request, digest in requests:
            await b.ends(request, digest)
        assert b.worker.executor.most_adapters == 2


async def test_the_whole_catalog_comes_first_and_then_what_changes(tmp_path):
    root = tmp_path / "adapters"
    fakes.write(root / "a")
    fakes.write(root / "acme" / "b", seed=1)
    parts = partial(fakes.parts, slots=2, directory=root)
    async with fake_worker(adapters=parts) as worker, played_router(worker) as router:
        (first, *_) = await router.came("adapter_state")
        assert first.complete
        assert {info.name for info in first.entries} == {"a", "acme/b"}
        assert next(kind for kind in (f.WhichOneof("frame") for f in router.frames) if kind != "load") == "welcome"
        assert worker.hub.adapters is not None
        await until(lambda: all(info.digest for info in worker.hub.adapters.infos()), "the survey")
        assert worker.metric("adapter", adapter="acme/b", level="host") == 1


@pytest.mark.parametrize("known", [False, True])
async def test_a_name_alone_means_what_the_worker_has_under_it(tmp_path, known):
    async with bench(tmp_path) as b:
        if known:
            await b.load("acme/a", fakes.write(tmp_path / "elsewhere"))
        else:
            fakes.write(b.root / "acme" / "a")
        request = await b.submit(adapter_name="acme/a")
        digest = fakes.CountingReader()(tmp_path / "elsewhere" if known else b.root / "acme" / "a", 1 << 20).digest
        await b.ends(request, digest)
        await until(lambda: b.level("acme/a") is AdapterLevel.DEVICE, "news of its slot")


async def test_what_cannot_be_had_is_refused_with_a_kind_of_its_own(tmp_path):
    async with bench(tmp_path) as b:
        fakes.write(b.root / "large", rank=300)
        fakes.write(b.root / "fine")
        assert await b.refused(await b.submit(adapter_name="nobody")) == (
            "ADAPTER_UNKNOWN",
            "there is no adapter 'nobody'",
        )
        code, message = await b.refused(await b.submit(adapter_name="large"))
        assert (code, "rank 300 is over the 16" in message) == ("ADAPTER_INVALID", True)
        code, _ = await b.refused(await b.submit(adapter_name="fine", adapter_digest=bytes(32)))
        assert code == "ADAPTER_VERSION_UNAVAILABLE"
        code, _ = await b.refused(await b.submit(adapter_digest=bytes(32)))
        assert code == "ADAPTER_VERSION_UNAVAILABLE"
        code, message = await b.refused(await b.submit(adapter_name="../fine"))
        assert (code, "no adapter's name" in message) == ("ADAPTER_INVALID", True)
        await b.ends(await b.submit())


async def test_c1_an_unloaded_adapter_is_gone_when_its_last_request_is(tmp_path):
    async with bench(tmp_path, scanned=False) as b:
        source = fakes.write(tmp_path / "a")
        digest = (await b.load("a", source)).digest
        b.worker.gate.hold()
        running = [await b.submit(adapter_digest=digest, adapter_name="a", max_tokens=30) for _ in range(3)]
        await b.router.arrived()
        await b.unload("a")
        assert (await b.refused(await b.submit(adapter_name="a")))[0] == "ADAPTER_UNKNOWN"
        b.worker.gate.open()
        for request in running:
            await b.ends(request)
        await until(lambda: not b.device.there and not b.service.library.catalog.used, "an empty slot")
        b.nothing_is_left()
        assert b.level("a") is None
        assert not any(b.worker.metric("adapter", adapter="a", level=level.value) for level in AdapterLevel)
        assert (await refusal(b.unload("a"))).code() is grpc.StatusCode.NOT_FOUND
        assert (await b.load("a", source)).digest == digest
        await b.ends(await b.submit(adapter_name="a"), digest)
        assert len(b.service.library.catalog.versions) == 1


async def test_c2_nothing_of_many_unloaded_adapters_stays(tmp_path):
    async with bench(tmp_path, scanned=False) as b:
        for seed in range(20):
            source = fakes.write(tmp_path / "a", seed=seed)
            digest = (await b.load("a", source)).digest
            await b.ends(await b.submit(adapter_digest=digest))
            await b.unload("a")
        await until(lambda: not b.device.there, "empty slots")
        b.nothing_is_left()


async def test_c3_after_a_replacement_new_weights_and_none_of_the_old_blocks_are_used(tmp_path):
    async with bench(tmp_path, scanned=False) as b:
        old = (await b.load("a", fakes.write(tmp_path / "old"))).digest
        await b.ends(await b.submit(adapter_name="a", first=1, length=40), old)
        b.worker.gate.hold()
        running = await b.submit(adapter_name="a", first=1, length=40, max_tokens=40)
        await b.router.arrived()
        new_source = fakes.write(tmp_path / "new", seed=1)
        assert code_of(await refusal(b.load("a", new_source))) == ("ALREADY_EXISTS", "already_exists")
        new = (await b.load("a", new_source, replace=True)).digest
        after = await b.submit(adapter_name="a", first=1, length=40)
        b.worker.gate.open()
        await b.ends(running, old)
        await b.ends(after, new)
        (end,) = await b.router.finished(after.choices[0].handle)
        assert end.cached_tokens == 0
        again = await b.submit(adapter_name="a", first=1, length=40)
        await b.ends(again, new)
        (end,) = await b.router.finished(again.choices[0].handle)
        assert end.cached_tokens == 32
        await until(lambda: b.device.there == {new}, "the old one to leave")


async def test_c4_each_load_reads_once_and_serving_reads_nothing(tmp_path):
    async with bench(tmp_path, scanned=False) as b:
        for seed in range(3):
            await b.load("a", fakes.write(tmp_path / "a", seed=seed), replace=True)
            assert len(b.reader.reads) == seed + 1
            for request in [await b.submit(adapter_name="a") for _ in range(5)]:
                await b.router.finished(request.choices[0].handle)
            assert len(b.reader.reads) == seed + 1


async def test_many_requests_at_once_for_one_that_has_not_been_read_read_it_once(tmp_path):
    async with bench(tmp_path) as b:
        b.reader.gate.clear()
        fakes.write(b.root / "a")
        requests = [await b.submit(adapter_name="a") for _ in range(6)]
        await b.router.arrived()
        b.reader.gate.set()
        await b.router.finished(*(request.choices[0].handle for request in requests))
        assert len(b.reader.reads) == 1


@pytest.mark.parametrize("stage", ["lobby", "slot"])
async def test_a_load_that_takes_long_holds_up_nobody_else(tmp_path, stage):
    async with bench(tmp_path) as b:
        gate = b.reader.gate if stage == "lobby" else b.device.gate
        gate.clear()
        fakes.write(b.root / "slow")
        waits = await b.submit(adapter_name="slow")
        for _ in range(3):
            await b.ends(await b.submit())
        assert not b.router.tokens(waits.choices[0].handle)
        gate.set()
        (end,) = await b.router.finished(waits.choices[0].handle)
        assert end.reason is FinishReason.LENGTH


async def test_who_leaves_or_runs_out_of_time_while_the_adapter_is_read_gets_an_end(tmp_path):
    async with bench(tmp_path) as b:
        b.reader.gate.clear()
        fakes.write(b.root / "a")
        leaves = await b.submit(adapter_name="a")
        late = await b.submit(adapter_name="a", remaining_ms=1)
        stays = await b.submit(adapter_name="a")
        await b.router.call.write(abort_to_pb([leaves.choices[0].handle], AbortReason.CLIENT))
        (end,) = await b.router.finished(leaves.choices[0].handle)
        assert end.reason is FinishReason.ABORTED
        b.reader.gate.set()
        ends = await b.router.finished(late.choices[0].handle, stays.choices[0].handle)
        assert [end.reason for end in ends] == [FinishReason.DEADLINE, FinishReason.LENGTH]
        await b.worker.whole()
        assert not any(held.holds for held in b.service.library.catalog.versions.values())


async def test_a_router_that_goes_lets_go_of_its_adapters(tmp_path):
    async with bench(tmp_path, scanned=False) as b:
        digest = (await b.load("a", fakes.write(tmp_path / "a"))).digest
        async with played_router(b.worker) as other:
            b.worker.gate.hold()
            await other.submit(token_request(1, 1, adapter_digest=digest, max_tokens=50))
            await other.arrived()
        await until(lambda: not b.service.library.catalog.versions[digest].holds, "the holds to go")
        b.worker.gate.open()
        await b.worker.whole()


async def test_a_prefetched_adapter_is_in_host_memory_and_an_unknown_one_is_told_to_be_gone(tmp_path):
    async with bench(tmp_path, scanned=False) as b:
        await b.router.send(prefetch_adapter=pb.PrefetchAdapter(name="nobody"))
        await until(lambda: any("nobody" in state.removed for state in b.states()), "its absence")
        source = fakes.write(tmp_path / "a")
        await b.load("a", source)
        b.service.library.catalog._evict(b.service.library.catalog.entries["a"].held)
        await b.router.send(prefetch_adapter=pb.PrefetchAdapter(name="a"))
        await until(lambda: b.service.info("a").level is AdapterLevel.HOST, "the adapter")


async def test_host_memory_keeps_to_its_budget_and_what_left_comes_again(tmp_path):
    size = sum(one.nbytes for one in fakes.tensors().values())
    async with bench(tmp_path, scanned=False, host_bytes=2 * size) as b:
        digests = [(await b.load(f"a{n}", fakes.write(tmp_path / str(n), seed=n))).digest for n in range(4)]
        catalog = b.service.library.catalog
        assert (catalog.used, len(b.reader.reads)) == (2 * size, 4)
        for digest in digests * 2:
            await b.ends(await b.submit(adapter_digest=digest))
            assert catalog.used <= 2 * size
        catalog.check_integrity()


async def test_what_changed_at_its_source_is_not_taken_for_what_left_memory(tmp_path):
    async with bench(tmp_path, scanned=False) as b:
        digest = (await b.load("a", fakes.write(tmp_path / "a"))).digest
        b.service.library.catalog._evict(b.service.library.catalog.entries["a"].held)
        fakes.write(tmp_path / "a", seed=9)
        assert (await b.refused(await b.submit(adapter_digest=digest)))[0] == "ADAPTER_VERSION_UNAVAILABLE"
        new = b.service.info("a").digest
        assert new != digest
        await b.ends(await b.submit(adapter_name="a"), new)


async def test_pinned_adapters_keep_memory_and_slot_and_leave_a_slot_to_others(tmp_path):
    async with bench(tmp_path, scanned=False) as b:
        infos = [await b.load(f"a{n}", fakes.write(tmp_path / str(n), seed=n)) for n in range(4)]
        await b.ends(await b.submit(adapter_digest=infos[0].digest))
        assert (await b.stub.PinAdapter(pb.PinAdapterRequest(name="a0", pinned=True))).pinned
        for info in infos[1:] * 2:
            await b.ends(await b.submit(adapter_digest=info.digest))
            assert infos[0].digest in b.device.there
        error = await refusal(b.stub.PinAdapter(pb.PinAdapterRequest(name="a1", pinned=True)))
        assert code_of(error) == ("RESOURCE_EXHAUSTED", "adapter_memory")
        await b.stub.PinAdapter(pb.PinAdapterRequest(name="a0", pinned=False))
        for info in infos[1:]:
            await b.ends(await b.submit(adapter_digest=info.digest))
        assert infos[0].digest not in b.device.there


async def test_the_directory_is_followed(tmp_path):
    async with bench(tmp_path) as b:
        fakes.write(b.root / "a")
        await until(lambda: b.service.info("a") and b.service.info("a").digest, "the new adapter")
        old = b.service.info("a").digest
        fakes.write(b.root / "a", seed=1)
        await until(lambda: b.service.info("a").digest not in (old, b""), "the changed adapter")
        await b.ends(await b.submit(adapter_name="a"), b.service.info("a").digest)
        fakes.write(b.root / "a", rank=99)
        await until(lambda: "rank 99" in b.service.info("a").error, "the reason")
        await b.ends(await b.submit(adapter_name="a"), b.service.info("a").digest)
        shutil.rmtree(b.root / "a")
        await until(lambda: b.service.info("a") is None, "the adapter to go")
        assert (await b.refused(await b.submit(adapter_name="a")))[0] == "ADAPTER_UNKNOWN"


async def test_an_unloaded_adapter_does_not_come_back_by_itself_unless_its_files_change(tmp_path):
    async with bench(tmp_path) as b:
        fakes.write(b.root / "a")
        await until(lambda: b.service.info("a") and b.service.info("a").digest, "the adapter")
        await b.unload("a")
        fakes.write(b.root / "later")
        await until(lambda: b.service.info("later"), "another look")
        assert (await b.refused(await b.submit(adapter_name="a")))[0] == "ADAPTER_UNKNOWN"
        await b.load("a")
        await b.router.finished((await b.submit(adapter_name="a")).choices[0].handle)


async def test_links_that_lead_out_of_the_directory_are_not_followed(tmp_path):
    async with bench(tmp_path) as b:
        outside = fakes.write(tmp_path / "outside")
        (b.root / "linked").symlink_to(outside)
        fakes._escaping(b.root / "weights")
        code, message = await b.refused(await b.submit(adapter_name="linked"))
        assert (code, "leads out of the adapter directory" in message) == ("ADAPTER_INVALID", True)
        assert (await b.refused(await b.submit(adapter_name="weights")))[0] == "ADAPTER_INVALID"
        assert (await refusal(b.load("linked", "linked"))).code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_what_a_strangers_files_say_reaches_routers_whatever_it_is(tmp_path):
    """Text that is none, words of any length, pipes: told as what is wrong with their adapter, and the stream goes on."""
    aside = tmp_path / "aside"
    made = {
        "fine": fakes.write(aside / "fine"),
        "halves": fakes.write(aside / "halves", target_modules=["half \ud800"]),
        "long": fakes.write(aside / "long", held={"k" * 500_000: torch.ones(1)} | fakes.tensors()),
        "targets": fakes.write(aside / "targets", target_modules=["\U0001f600" * 900 + str(n) for n in range(8)]),
        "pipe": fakes.pipe(aside / "pipe", "adapter_model.safetensors"),
    }
    broken = sorted(made.keys() - {"fine"})
    async with bench(tmp_path) as b:
        for name, path in made.items():
            path.rename(b.root / name)
        await until(lambda: all(b.service.info(name) and b.service.info(name).error for name in broken), "the survey")
        for name in broken:
            code, message = await b.refused(await b.submit(adapter_name=name))
            assert (code, len(message) <= 2_003) == ("ADAPTER_INVALID", True)
            error = await refusal(b.load("new", b.root / name))
            assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND), name
        assert (await refusal(b.load("new", "/" + "\U0001f600" * 4_000))).code() is grpc.StatusCode.NOT_FOUND
        assert (await refusal(b.load("n" * 256))).code() is grpc.StatusCode.NOT_FOUND
        await b.ends(await b.submit(adapter_name="fine"), b.service.info("fine").digest)


async def test_loads_tell_each_adapters_requests(tmp_path):
    async with bench(tmp_path, scanned=False) as b:
        digest = (await b.load("a", fakes.write(tmp_path / "a"))).digest
        b.worker.gate.hold()
        requests = [await b.submit(adapter_digest=digest, max_tokens=30) for _ in range(3)]
        await b.router.arrived()
        b.worker.gate.allow(1)
        load = await b.router.load(lambda load: any(one.running + one.waiting == 3 for one in load.adapters))
        assert [(one.digest, one.idle_ms) for one in load.adapters] == [(digest, 0)]
        b.worker.gate.open()
        await b.router.finished(*(request.choices[0].handle for request in requests))
        load = await b.router.load(lambda load: all(one.running + one.waiting == 0 for one in load.adapters))
        assert [one.digest for one in load.adapters] == [digest]


async def test_a_worker_that_has_nothing_to_do_but_wait_for_an_adapter_is_not_taken_for_hung(tmp_path):
    clock = FakeClock()
    async with bench(tmp_path, scanned=False, clock=clock) as b:
        digest = (await b.load("a", fakes.write(tmp_path / "a"))).digest
        b.device.gate.clear()
        request = await b.submit(adapter_digest=digest)
        await b.router.arrived()
        clock.now += 100.0
        await until(lambda: b.worker.hub.engine.step_age() < 1, "a sign of life")
        assert b.worker.servicer.serving()
        b.device.gate.set()
        await b.ends(request)


def test_a_load_names_no_more_adapters_than_fit_a_frame_and_those_with_most_requests_first():
    stats = [
        AdapterStats(digest=bytes([n % 256, n // 256]) * 16, running=n % 3, waiting=0, idle_since=0.0, ready=False)
        for n in range(2_000)
    ]
    told = loads_of(stats, 1.0)
    assert len(told) == MOST_LOADS
    assert sum(one.running for one in told) > sum(one.running for one in stats) * 0.6
    assert all(one.idle_ms == 0 for one in told if one.running)
