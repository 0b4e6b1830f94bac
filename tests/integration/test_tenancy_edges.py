"""Who is let in, at both edges, and what is told to whom is not."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from octavo.cli.main import main
from octavo.client.aio import AsyncClient
from protos import inference_pb2 as pb
from router.tenancy import salts
from router.tenancy.records import Scope
from shared.errors import Unauthenticated
from tests.fakes.engine import fake_worker
from tests.fakes.processes import beating
from tests.fakes.scripted_worker import ScriptedWorker, echo, until
from tests.fakes.tenancy import add
from tests.fakes.tenanted import Tenanted, tenanted

ASK = pb.GenerateRequest(
    model="tiny", prompt_tokens=pb.TokenIds(ids=[10, 11, 12]), sampling=pb.Sampling(max_tokens=4, ignore_eos=True)
)


@asynccontextmanager
async def open_router(path: Path) -> AsyncIterator[Tenanted]:
    async with fake_worker() as worker, tenanted(path, worker.target) as router:
        yield router


async def generate(router: Tenanted, *metadata: tuple[str, str], request: pb.GenerateRequest = ASK) -> grpc.StatusCode:
    call = router.stub.Generate(request, metadata=metadata)
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return await call.code()


async def test_without_tenants_everyone_is_let_in_with_a_key_or_without(tmp_path: Path) -> None:
    async with open_router(tmp_path) as router:
        assert [(await router.post(key)).status_code for key in (None, "anything")] == [200, 200]
        assert await generate(router) == grpc.StatusCode.OK
        assert {charge.tenant for charge in await router.charges()} == {"open"}


async def test_with_a_tenant_only_its_key_is_let_in(tmp_path: Path) -> None:
    async with open_router(tmp_path) as router:
        key = await add(router.store, "acme")
        await router.known()
        assert (await router.post(key)).status_code == 200
        assert await generate(router, ("authorization", f"bearer {key}")) == grpc.StatusCode.OK
        assert await generate(router, ("x-api-key", key)) == grpc.StatusCode.OK
        assert await generate(router, ("authorization", f"Bearer {key}"), ("x-api-key", key)) == grpc.StatusCode.OK
        for wrong in (None, "x", key[:-1]):
            answer = await router.post(wrong)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.json()["error"]["code"] == "invalid_api_key"
        assert await generate(router) == grpc.StatusCode.UNAUTHENTICATED
        assert await generate(router, ("authorization", f"Basic {key}")) == grpc.StatusCode.UNAUTHENTICATED


async def test_every_route_and_method_wants_a_key_but_probes(tmp_path: Path) -> None:
    async with open_router(tmp_path) as router:
        key = await add(router.store, "acme")
        await router.known()
        for path in ("/", "/health", "/ready", "/version", "/metrics", "/openapi.json", "/docs"):
            assert (await router.http.get(path)).status_code == 200
        hidden = (
            "/v1/models",
            "/v1/models/tiny",
            "/v1/nothing",
            "//v1/models",
            "/health/",
            "/V1/models",
            "/v1/../v1/models",
        )
        for path in hidden:
            assert (await router.http.get(path)).status_code == 401, path
        for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"):
            assert (await router.http.post(path, content=b"{")).status_code == 401
        assert (await router.http.get("/v1/nothing", headers={"x-api-key": key})).status_code == 404
        for call in (
            router.stub.ListModels(pb.ListModelsRequest()),
            router.stub.Tokenize(pb.TokenizeRequest(model="tiny", text="a")),
            router.stub.Detokenize(pb.DetokenizeRequest(model="tiny", tokens=[1])),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED


async def test_a_strangers_body_is_not_read(tmp_path: Path) -> None:
    async with open_router(tmp_path) as router:
        await add(router.store, "acme")
        await router.known()
        reader, writer = await asyncio.open_connection(*router.address.rsplit(":", 1))
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n")
        async with asyncio.timeout(20):
            head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 401 ")
        assert b"connection: close" in head.lower()
        writer.close()


async def test_what_is_not_to_be_seen_is_answered_as_what_is_not_there(tmp_path: Path) -> None:
    async with open_router(tmp_path) as router:
        key = await add(router.store, "acme", models=("other-*",))
        await router.known()
        headers = {"Authorization": f"Bearer {key}"}
        assert (await router.http.get("/v1/models", headers=headers)).json()["data"] == []
        hidden = await router.http.get("/v1/models/tiny", headers=headers)
        missing = await router.http.get("/v1/models/tiniest", headers=headers)
        assert hidden.status_code == missing.status_code == 404
        assert hidden.text.replace("tiny", "tiniest") == missing.text
        for path in ("/v1/completions", "/tokenize", "/detokenize"):
            told = [await router.post(key, path, model=name, prompt="a", tokens=[1]) for name in ("tiny", "tiniest")]
            assert [answer.status_code for answer in told] == [404, 404]
            assert told[0].text.replace("tiny", "tiniest") == told[1].text
        calls = router.stub.ListModels(pb.ListModelsRequest(), metadata=(("x-api-key", key),))
        assert list((await calls).models) == []
        hidden_ask = pb.GenerateRequest(model="tiny", prompt_tokens=ASK.prompt_tokens)
        assert await generate(router, ("x-api-key", key), request=hidden_ask) == grpc.StatusCode.NOT_FOUND


async def test_a_key_without_the_scope_is_told_so(tmp_path: Path) -> None:
    async with open_router(tmp_path) as router:
        key = await add(router.store, "acme", scopes=frozenset({Scope.ADAPTERS}))
        await router.known()
        answer = await router.post(key)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "permission_denied")
        assert (await router.post(key, "/tokenize", prompt="a")).status_code == 403
        assert await generate(router, ("x-api-key", key)) == grpc.StatusCode.PERMISSION_DENIED


async def test_a_revoked_key_ends_a_session_that_it_opened(tmp_path: Path) -> None:
    async with open_router(tmp_path) as router:
        key = await add(router.store, "acme")
        await router.known()
        call = router.stub.Session(metadata=(("x-api-key", key),))
        start = pb.GenerateRequest(request_id="a", model="tiny", prompt_tokens=ASK.prompt_tokens, sampling=ASK.sampling)
        await call.write(pb.SessionRequest(start=start))
        events = [event async for event in _until_ended(call, "a")]
        assert events[-1].done
        await router.store.revoke_key("acme", "main", actor="test")
        await router.known()
        start.request_id = "b"
        await call.write(pb.SessionRequest(start=start))
        events = [event async for event in _until_ended(call, "b")]
        assert events[-1].error.code == "invalid_api_key"
        call.cancel()


Call = grpc.aio.StreamStreamCall[pb.SessionRequest, pb.SessionResponse]


async def _until_ended(call: Call, request_id: str) -> AsyncIterator[pb.SessionEvent]:
    async with asyncio.timeout(20):
        while True:
            response = await call.read()
            assert isinstance(response, pb.SessionResponse)
            for event in response.events:
                yield event
                if event.request_id == request_id and (event.done or event.error.code):
                    return


async def test_router_case_28_forged_headers_have_no_effect(tmp_path: Path) -> None:
    """vLLM-project/semantic-router 1445, llm-d-async 380: a tenant, a priority or a peer that the client names is not believed."""
    async with open_router(tmp_path) as router:
        await add(router.store, "rich", weight=100.0)
        poor = await add(router.store, "poor", requests_per_minute=3, top_class=5)
        await router.known()
        forged = {
            "X-Tenant": "rich", "X-Tenant-Id": "rich", "X-Octavo-Tenant": "rich", "X-Fairness-Id": "rich", "OpenAI-Organization": "rich",
            "X-Priority": "0", "X-Request-Priority": "0", "X-Forwarded-For": "127.0.0.1", "X-Forwarded-User": "rich",
            "Forwarded": "for=127.0.0.1",
            "X-Real-IP": "127.0.0.1", "X-Authenticated-User": "rich", "X-Forwarded-Host": "admin", "X-Original-URL": "/metrics",
        }  # fmt: skip
        body = {
            "model": "tiny",
            "prompt": [10, 11],
            "max_tokens": 2,
            "tenant": "rich",
            "user": "rich",
            "priority": -1,
            "n": 1,
        }
        alone = await router.http.post("/v1/completions", json=body, headers=forged)
        assert alone.status_code == 401
        told = []
        for _ in range(4):
            answer = await router.http.post(
                "/v1/completions", json=body, headers={**forged, "Authorization": f"Bearer {poor}"}
            )
            told.append(answer.status_code)
        assert told == [200, 200, 200, 429]
        metadata = [(name.lower(), value) for name, value in forged.items()]
        assert await generate(router, *metadata) == grpc.StatusCode.UNAUTHENTICATED
        assert await generate(router, *metadata, ("x-api-key", poor)) == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert {charge.tenant for charge in await router.charges()} == {"poor"}


@pytest.mark.parametrize(
    "query",
    [
        "api_key={}",
        "key={}",
        "token=abc",
        "access_token={}",
        "Authorization=Bearer%20{}",
        "x={}",
        "a=1&API_KEY=z",
        "=" + "&a=1" * 200,
    ],
)
async def test_a_key_in_an_address_is_refused(tmp_path: Path, query: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with open_router(tmp_path) as router:
        key = await add(router.store, "acme")
        await router.known()
        answer = await router.post(key, f"/v1/completions?{query.format(key)}")
        assert answer.status_code == 400
        assert key.split("-")[2] not in answer.text


async def test_a_key_stands_in_no_error_and_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with open_router(tmp_path) as router:
        key = await add(router.store, "acme")
        await router.known()
        headers = {"Authorization": f"Bearer {key}", "X-Request-Id": key}
        answers = [
            await router.http.get(f"/v1/models/{key}", headers=headers),
            await router.http.get(f"/{key}", headers=headers),
            await router.post(key, model=key),
            await router.post(key, **{key: 1, "max_tokens": key}),
            await router.http.post("/v1/completions", json=[], headers={**headers, "Content-Type": key}),
        ]
        status = await generate(
            router, ("x-api-key", key), request=pb.GenerateRequest(model=key, request_id=key, prompt="a")
        )
        assert status == grpc.StatusCode.NOT_FOUND
        assert all(answer.status_code >= 400 for answer in answers)
        secret = key.split("-")[2]
        ours = [
            record for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))
        ]  # the client's own
        told = [*(answer.text + str(answer.headers) for answer in answers), *(record.getMessage() for record in ours)]
        assert [text for text in told if secret in text] == []


async def test_changes_reach_a_router_by_themselves(tmp_path: Path) -> None:
    async with open_router(tmp_path) as router:
        await add(router.store, "acme")
        await until(lambda: router.tenancy.keyring and router.tenancy.keyring.snapshot.tenancy, "the change")
        assert (await router.post(None)).status_code == 401


async def test_metrics_name_tenants_to_admins_alone(tmp_path: Path) -> None:
    async with open_router(tmp_path) as router:
        key = await add(router.store, "acme")
        admin = await add(router.store, "ops", scopes=frozenset({Scope.ADMIN}))
        await router.known()
        assert (await router.post(key)).status_code == 200
        bearer = {who: {"Authorization": f"Bearer {who}"} for who in (key, admin, "wrong")}
        shown = await router.http.get("/metrics", headers=bearer[admin])
        assert 'octavo_router_tenant_tokens_total{kind="output",tenant="acme"} 4.0' in shown.text
        for headers in ({}, bearer[key]):
            hidden = await router.http.get("/metrics", headers=headers)
            assert hidden.status_code == 200
            assert "octavo_router_requests_total" in hidden.text
            assert "acme" not in hidden.text
        assert (await router.http.get("/metrics", headers=bearer["wrong"])).status_code == 401


async def test_weight_class_and_salt_go_to_the_worker_as_the_store_has_them(tmp_path: Path) -> None:
    async with ScriptedWorker(script=echo) as worker, beating(worker), tenanted(tmp_path, worker.target) as router:
        key = await add(router.store, "acme", weight=2.5, top_class=2)
        await router.known()
        for body in ({}, {"priority": 0}, {"priority": 4}, {"cache_salt": "x"}):
            assert (await router.post(key, **body)).status_code == 200
        tenants = [submit.tenant for submit in worker.now.submits]
        assert [(tenant.id, tenant.weight, tenant.priority) for tenant in tenants] == [
            ("acme", 2.5, 2),
            ("acme", 2.5, 2),
            ("acme", 2.5, 4),
            ("acme", 2.5, 2),
        ]
        snapshot = await router.store.snapshot()
        salt = salts.of_tenant(snapshot.secret, snapshot.tenants[0])
        assert [tenant.salt for tenant in tenants] == [salt, salt, salt, salts.nested(salt, "x")]


async def test_octavos_own_client_brings_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_router(tmp_path) as router:
        key = await add(router.store, "acme")
        await router.known()
        async with AsyncClient(router.grpc, api_key=key) as client:
            answer = await client.complete([10, 11, 12], max_tokens=3, ignore_eos=True)
            assert answer.usage.completion_tokens == 3
            assert [model.id for model in await client.models()] == ["tiny"]
        async with AsyncClient(router.grpc) as client:
            with pytest.raises(Unauthenticated):
                await client.models()
        monkeypatch.setenv("OCTAVO_API_KEY", key)
        async with AsyncClient(router.grpc) as client:
            assert await client.tokenize("a")


@pytest.mark.parametrize("command", [("adapters", "list"), ("chat",)])
async def test_who_gives_a_command_no_key_is_told_where_it_takes_one_from(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: tuple[str, ...],
) -> None:
    monkeypatch.delenv("OCTAVO_API_KEY", raising=False)
    async with open_router(tmp_path) as router:
        await add(router.store, "acme")
        await router.known()
        assert await asyncio.to_thread(main, [*command, "--target", router.grpc]) == 1
        assert "$OCTAVO_API_KEY or --api-key" in capsys.readouterr().err


async def test_texts_that_take_long_hold_up_no_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_router(tmp_path) as router:
        held = asyncio.Event()

        async def slow(*_: object, **__: object) -> list[int]:
            await held.wait()
            return [1]

        monkeypatch.setattr(router.service, "tokenize", slow)
        waiting = [asyncio.create_task(router.post(None, "/tokenize", prompt="a")) for _ in range(8)]
        answers = await asyncio.gather(*(router.post(None) for _ in range(8)))
        assert [answer.status_code for answer in answers] == [200] * 8
        held.set()
        assert [answer.status_code for answer in await asyncio.gather(*waiting)] == [200] * 8
