"""Files that somebody writes to while they are read, links that lead in a circle, and directories that cannot be looked into."""

import os

import pytest

from tests.fakes import adapters as fakes
from worker.adapters import files
from worker.adapters.directory import find, scan
from worker.adapters.errors import AdapterInvalid, AdapterNotFound
from worker.adapters.peft import read
from worker.adapters.sources import located


class Meddled:
    """A file of which each read gives a little, after `meddle` was called once."""

    def __init__(self, file, meddle):
        self._file = file
        self._meddle = meddle

    def readinto(self, into):
        meddle, self._meddle = self._meddle, lambda: None
        meddle()
        return self._file.readinto(into[:100])

    def fileno(self):
        return self._file.fileno()


def whole(path, meddle):
    into = bytearray(path.stat().st_size)
    with files.regular(path) as file:
        files.read_whole(Meddled(file, meddle), path.name, memoryview(into))
    return bytes(into)


def test_a_file_that_comes_in_pieces_is_read_to_its_end(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 4)
    assert whole(path, lambda: None) == bytes(range(256)) * 4


def test_a_file_that_is_written_to_while_it_is_read_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(1_000))
    os.utime(path, ns=(0, 0))

    def write_in_place():
        with path.open("r+b") as file:
            file.write(b"new")

    with pytest.raises(AdapterInvalid, match="file was written to while it was read"):
        whole(path, write_in_place)


def test_a_file_that_is_cut_while_it_is_read_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(1_000))
    with pytest.raises(AdapterInvalid, match="truncated while it was read, 10 of 1000"):
        whole(path, lambda: os.truncate(path, 10))


def test_a_file_that_another_takes_the_place_of_is_read_as_it_was(tmp_path):
    path, other = tmp_path / "file", tmp_path / "other"
    path.write_bytes(b"a" * 1_000)
    other.write_bytes(b"b" * 1_000)
    assert whole(path, lambda: other.rename(path)) == b"a" * 1_000


def test_links_in_a_circle_keep_nobody_from_finding_the_others(tmp_path):
    fakes.write(tmp_path / "fine")
    weights = fakes.write(tmp_path / "circle") / "adapter_model.safetensors"
    weights.unlink()
    weights.symlink_to(weights)
    (tmp_path / "round").symlink_to(tmp_path / "round")
    assert "fine" in scan(tmp_path)
    with pytest.raises(AdapterNotFound):
        read(find(tmp_path, "circle").path, fakes.base(), 1 << 20)
    with pytest.raises(AdapterNotFound), located("round", tmp_path, 1 << 20):
        pass


def test_a_directory_that_cannot_be_looked_into_keeps_nobody_from_finding_the_others(tmp_path, monkeypatch):
    fakes.write(tmp_path / "fine")
    fakes.write(tmp_path / "closed")
    real = os.stat

    def stat(path, **how):
        if "closed/" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **how)

    monkeypatch.setattr(os, "stat", stat)
    assert set(scan(tmp_path)) == {"fine"}
    with pytest.raises(AdapterNotFound, match="Permission denied"):
        find(tmp_path, "closed")


def test_a_name_that_is_longer_than_a_files_may_be_is_not_there(tmp_path):
    with pytest.raises(AdapterNotFound, match="File name too long"):
        find(tmp_path, "a" * 256)


@pytest.mark.parametrize("source", ["/" + "a" * 4_000, "a" * 4_000, "~nobody-of-this-name/a"])
def test_a_source_that_cannot_be_looked_for_is_told_as_not_there(tmp_path, source):
    with pytest.raises(AdapterNotFound, match="cannot be looked for"), located(source, tmp_path, 1 << 20):
        pass


def test_an_adapter_whose_names_together_are_too_long_is_not_listed(tmp_path):
    fakes.write(tmp_path / ("t" * 200) / ("a" * 200))
    fakes.write(tmp_path / "fine")
    assert set(scan(tmp_path)) == {"fine"}
