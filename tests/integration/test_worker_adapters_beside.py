"""Whatever happens to adapters, streams of others get the tokens that they would get alone."""

import asyncio

import grpc
import pytest

from shared import rpc
from tests.fakes import adapters as fakes
from tests.fakes.adapter_bench import CODES, bench, code_of, others, random_operations, refusal
from tests.fakes.scripted_worker import until


async def test_c5_c6_each_broken_adapter_is_refused_with_its_reason_and_16_streams_do_not_notice(tmp_path):
    async with bench(tmp_path, max_running=16, blocks=256) as b:
        mine = (await b.load("mine", fakes.write(tmp_path / "mine"))).digest
        async with others(b, mine):
            for number, (kind, (make, reason)) in enumerate(fakes.BROKEN.items()):
                source = make(tmp_path / f"broken{number}")
                error = await refusal(b.load(f"broken{number}", source))
                assert error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND), kind
                with pytest.raises(Exception, match=reason):
                    raise rpc.from_rpc_error(error)
                assert (await b.refused(await b.submit(adapter_name=f"broken{number}")))[0] == "ADAPTER_UNKNOWN"
            for source in ("../mine", "x/../../mine", str(tmp_path / "nothing")):
                error = await refusal(b.load("escapes", source))
                assert code_of(error)[1] in ("adapter_invalid", "adapter_not_found")
        assert set(b.service.library.catalog.entries) == {"mine"}


@pytest.mark.parametrize("depth", [0, 1])
async def test_c7_200_loads_replacements_and_unloads_alter_no_stream_and_leave_nothing(tmp_path, depth):
    async with bench(tmp_path, scanned=False, depth=depth, max_running=16, blocks=256, max_waiting=256) as b:
        mine = (await b.load("mine", fakes.write(tmp_path / "mine", seed=99))).digest
        sources = [fakes.write(tmp_path / str(seed), seed=seed) for seed in range(6)]
        async with others(b, mine):
            await asyncio.gather(*(random_operations(b, sources, 50, seed) for seed in range(4)))
        await b.worker.whole()
        for name in list(b.service.library.catalog.entries):
            await b.unload(name)
        await until(lambda: not b.device.there and not b.service.library.catalog.used, "everything to be freed")
        b.nothing_is_left()
        codes = {CODES[reject.code] for reject in b.router.of("reject")}
        assert codes <= {"ADAPTER_UNKNOWN"}
        assert all(
            b.router.finish(n) for n in range(1, b.seq + 1) if not any(r.seq == n for r in b.router.of("reject"))
        )


async def test_c10_one_request_behind_31_of_another_adapter_starts_though_there_is_one_slot(tmp_path):
    options = {"max_adapters": 1, "max_running": 4, "max_waiting": 64, "blocks": 256, "max_model_len": 2_000}
    async with bench(tmp_path, scanned=False, adapter_wait_s=0.05, adapter_slice_s=0.02, **options) as b:
        hot, cold = [(await b.load(f"a{n}", fakes.write(tmp_path / str(n), seed=n))).digest for n in range(2)]
        requests = [await b.submit(adapter_digest=hot, max_tokens=200, length=16) for _ in range(31)]
        behind = await b.submit(adapter_digest=cold, max_tokens=8, length=16)
        await b.ends(behind)
        left = [request for request in requests if b.router.finish(request.choices[0].handle) is None]
        assert len(left) >= 16
        for request in requests:
            await b.ends(request)
