"""An adapter comes from a path, from the adapter directory, or from an address; none leads where it should not."""

from pathlib import Path

import fsspec
import pytest

from tests.fakes import adapters as fakes
from worker.adapters.errors import AdapterInvalid, AdapterMemory, AdapterNotFound
from worker.adapters.names import checked
from worker.adapters.peft import read
from worker.adapters.sources import located

MOST = 1 << 20


def digest(source: str, root: Path | None = None, most: int = MOST) -> bytes:
    with located(source, root, most) as directory:
        return read(directory, fakes.base(), most).digest


def test_a_path_an_entry_and_an_address_give_the_same_version(tmp_path):
    written = fakes.write(tmp_path / "root" / "acme" / "a")
    system = fsspec.filesystem("memory")
    system.put(str(written), "/bucket/a", recursive=True)
    own = digest(str(written))
    assert digest("acme/a", tmp_path / "root") == own
    assert digest("memory://bucket/a") == own
    assert digest(f"file://{written}") == own


@pytest.mark.parametrize("source", ["../outside", "acme/../../outside", "link"])
def test_no_relative_path_leads_out_of_the_directory(tmp_path, source):
    outside = fakes.write(tmp_path / "outside")
    (tmp_path / "root" / "acme").mkdir(parents=True)
    (tmp_path / "root" / "link").symlink_to(outside)
    with pytest.raises(AdapterInvalid, match="leads out of the adapter directory"):
        digest(source, tmp_path / "root")


@pytest.mark.parametrize("source", ["/nowhere/at/all", "memory://nothing/here", "nothing", "strange://x/y"])
def test_where_there_is_nothing_that_is_said(tmp_path, source):
    with pytest.raises(AdapterNotFound):
        digest(source, tmp_path)


def test_a_relative_path_that_is_nowhere_is_told_what_it_would_be_relative_to(tmp_path, monkeypatch):
    def unreachable(*_args, **_options):
        raise ConnectionError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(
        AdapterNotFound, match=r"nothing in the adapter directory \(a path elsewhere must be absolute\)"
    ):
        digest("out/style", tmp_path)


def test_what_is_far_is_not_fetched_where_it_is_too_large(tmp_path):
    fsspec.filesystem("memory").put(str(fakes.write(tmp_path / "a")), "/large", recursive=True)
    with pytest.raises(AdapterMemory, match="100 are for adapters in host memory"):
        digest("memory://large", most=100)


@pytest.mark.parametrize("name", ["a", "acme/a-1.2_b@v3", "A" * 256])
def test_names_that_are(name):
    assert checked(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "/", "a/", "/a", "a/b/c", "..", "../a", "a/..", ".a", "-a", "a b", "a\n", "a\0", "ä", "a\\b", "A" * 257],
)
def test_names_that_are_none(name):
    with pytest.raises(AdapterInvalid, match="no adapter's name"):
        checked(name)
