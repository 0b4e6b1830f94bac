"""The commands that ask a server bring the key that they are given, and never show it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from octavo.bench import load
from octavo.cli import main as cli
from octavo.client.credentials import key_of, metadata_of
from shared.errors import InvalidRequest

KEY = "octk-abcdefghijkl-0123456789"


class _Recorder(grpc.GenericRpcHandler):
    """Refuses every call, and keeps what came with it."""

    def __init__(self) -> None:
        self.metadata: list[dict[str, Any]] = []

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        self.metadata.append(dict(details.invocation_metadata))

        def refuse(_request: bytes, context: grpc.ServicerContext) -> bytes:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "this API key is not valid")

        return grpc.unary_unary_rpc_method_handler(refuse)


@pytest.fixture
def recorder() -> Iterator[tuple[_Recorder, str]]:
    handler = _Recorder()
    server = grpc.server(ThreadPoolExecutor(1), handlers=[handler])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield handler, f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.mark.parametrize("by_flag", [True, False])
def test_chat_brings_its_key(
    by_flag: bool,
    recorder: tuple[_Recorder, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    handler, target = recorder
    monkeypatch.setenv("OCTAVO_API_KEY", "another" if by_flag else KEY)
    status = cli.main(["chat", "--target", target, *(["--api-key", KEY] if by_flag else [])])
    assert status == 1
    assert handler.metadata[0]["authorization"] == f"Bearer {KEY}"
    shown = capsys.readouterr()
    assert shown.err == "octavo: this API key is not valid (commands take it from $OCTAVO_API_KEY or --api-key)\n"
    assert KEY not in shown.out


async def _models(request: web.Request) -> web.Response:
    key = request.headers.get("Authorization", "")
    if key == f"Bearer {KEY}":
        return web.json_response({"data": [{"id": "tiny"}]})
    return web.json_response({"error": {"message": f"{key} is not valid"}}, status=401)


async def test_the_bench_brings_its_key_and_shows_none_that_is_refused() -> None:
    app = web.Application()
    app.router.add_get("/v1/models", _models)
    async with TestServer(app, host="127.0.0.1") as server:
        url = str(server.make_url("/"))
        async with load.session(url, KEY) as client:
            assert await load.only_model(client) == "tiny"
        async with load.session(url, f"{KEY}x") as client:
            with pytest.raises(load.RequestFailed) as refused:
                await load.only_model(client)
    assert refused.value.message == "HTTP 401: Bearer octk-*** is not valid"


@pytest.mark.parametrize("kind", ["serving", "intrusion"])
def test_both_benches_of_a_server_take_a_key(kind: str) -> None:
    arguments = cli._parser().parse_args(["bench", kind, "--api-key", KEY, "--url", "http://127.0.0.1:8000/v1/"])
    assert (arguments.api_key, arguments.url) == (KEY, "http://127.0.0.1:8000")


def test_a_key_is_taken_without_what_stands_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_API_KEY", f"{KEY}\n")
    assert key_of(None) == KEY
    assert key_of("") == ""
    assert metadata_of(f" {KEY} ") == (("authorization", f"Bearer {KEY}"),)


@pytest.mark.parametrize("wrong", [f"{KEY}é", f"{KEY}\nx: y", f"\0{KEY}"])
def test_a_key_that_no_header_can_hold_is_refused_unseen(wrong: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        metadata_of(wrong)
    assert KEY not in str(refused.value)
