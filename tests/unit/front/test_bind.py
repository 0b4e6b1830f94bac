"""Where an open router may listen."""

from pathlib import Path

import pytest

from octavo.cli import serve
from octavo.cli.main import main
from octavo.supervise.stack import StackConfig, router_command
from router import bind


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_is_let_be(host: str) -> None:
    bind.check_open(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "2001:db8::1", "0"])
def test_what_others_reach_is_refused_with_what_to_do(host: str) -> None:
    with pytest.raises(bind.Exposed, match=r"octavo tenant apply.*--store.*--allow-open") as refused:
        bind.check_open(host)
    assert host in str(refused.value)


def test_a_name_is_loopback_only_if_every_address_of_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [(2, 1, 6, "", ("127.0.0.1", 0)), (2, 1, 6, "", ("192.0.2.1", 0))]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_args, **_named: both)
    assert not bind.is_loopback("router.example")


def test_a_host_without_an_address_is_an_error() -> None:
    with pytest.raises(OSError, match=r"."):
        bind.check_open("no such host")


def test_serve_refuses_before_it_loads_anything(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in serve.ROUTERS_OWN:
        monkeypatch.delenv(name, raising=False)
    assert main(["serve", "no-such-org/no-such-model", "--host", "0.0.0.0"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    assert line.startswith("octavo serve: nobody needs a key yet")


@pytest.mark.parametrize("allowed", [False, True])
def test_serve_tells_the_router_what_it_was_told(allowed: bool) -> None:
    config = StackConfig(model="m", served_name="m", host="0.0.0.0", allow_open=allowed)
    assert ("--allow-open" in router_command(config, ["127.0.0.1:1"], None).arguments) is allowed


def test_serve_leaves_it_to_a_router_that_has_a_store(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The model that is not there is what is told then."""
    monkeypatch.setenv("OCTAVO_ROUTER_STORE", str(tmp_path / "tenants.db"))
    seen: list[str] = []

    def fetched(name: str, _progress: object) -> Path:
        seen.append(name)
        raise FileNotFoundError(2, "No such file or directory", name)

    monkeypatch.setattr(serve, "fetched", fetched)
    assert main(["serve", "absent", "--host", "0.0.0.0"]) == 1
    assert seen == ["absent"]
    assert "nobody needs a key" not in capsys.readouterr().err


def test_serve_looks_into_the_store_that_it_is_given(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is made where there is none, and what is wrong with it is told before anything is loaded."""
    for name in serve.ROUTERS_OWN:
        monkeypatch.delenv(name, raising=False)
    store = tmp_path / "tenants.db"
    asked = ["serve", "no-such-org/no-such-model", "--host", "0.0.0.0", "--store"]
    assert main([*asked, str(store)]) == 2
    assert store.exists()
    assert "nobody needs a key yet" in capsys.readouterr().err
    store.write_bytes(b"something else entirely" * 100)
    assert main([*asked, str(store)]) == 1
    assert "tenants.db" in capsys.readouterr().err
    assert main([*asked, str(tmp_path / "missing" / "tenants.db")]) == 1
    assert "No such file or directory" in capsys.readouterr().err


def test_serve_tells_the_router_where_operators_are_served() -> None:
    config = StackConfig(
        model="m", served_name="m", store=Path("/s.db"), admin_listen="[::1]:1", admin_grpc_listen="127.0.0.1:2"
    )
    arguments = " ".join(router_command(config, ["127.0.0.1:1"], None).arguments)
    assert "--store /s.db --admin-listen [::1]:1 --admin-grpc-listen 127.0.0.1:2" in arguments
    without = router_command(StackConfig(model="m", served_name="m"), ["127.0.0.1:1"], None).arguments
    assert not any(argument.startswith("--admin") for argument in without)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--admin-listen", "127.0.0.1:1"], "--store PATH"),
        (["--admin-grpc-listen", "127.0.0.1:1"], "--store PATH"),
        (["--adapter-dir", "/no/such/place"], "/no/such/place is no directory"),
    ],
)
def test_serve_refuses_what_can_serve_nobody_before_it_loads_anything(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in serve.ROUTERS_OWN:
        monkeypatch.delenv(name, raising=False)
    assert main(["serve", "no-such-org/no-such-model", *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    assert said in line
