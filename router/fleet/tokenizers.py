"""Tokenizers by digest: from memory, from disk, from a worker, in this order. What a worker sends is checked against its digest."""

import asyncio
import logging
import re
import shutil
import tempfile
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from pathlib import Path

from protos import worker_pb2 as pb
from router.text import tokenizer
from router.text.tokenizer import ModelText
from shared.tokenizer import MAX_BYTES, TokenizerBundle

log = logging.getLogger(__name__)

Fetch = Callable[[], Awaitable[Mapping[str, bytes]]]


class BadTokenizer(Exception):
    """Not the files that the digest names, or files that cannot be served."""


def default_cache(environ: Mapping[str, str]) -> Path:
    """$OCTAVO_CACHE/tokenizers, by default under ~/.cache/octavo."""
    root = environ.get("OCTAVO_CACHE")
    return (Path(root) if root else Path.home() / ".cache" / "octavo") / "tokenizers"


async def assemble(pieces: AsyncIterable[pb.TokenizerPiece]) -> dict[str, bytes]:
    """The files of a GetTokenizer stream. Raises BadTokenizer where they are too large."""
    files: dict[str, bytearray] = {}
    total = 0
    async for piece in pieces:
        total += len(piece.data)
        if total > MAX_BYTES:
            raise BadTokenizer(f"the tokenizer is larger than {MAX_BYTES} bytes")
        files.setdefault(piece.name, bytearray()).extend(piece.data)
    return {name: bytes(data) for name, data in files.items()}


class TokenizerStore:
    """Loads each digest once. `directory` None keeps nothing on disk; a directory that cannot be written is done without."""

    def __init__(self, directory: Path | None = None):
        self._directory = directory
        self._loaded: dict[str, ModelText] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def get(self, digest: str, fetch: Fetch) -> ModelText:
        """The tokenizer named `digest`. Raises BadTokenizer, or what `fetch` raises."""
        async with self._locks.setdefault(digest, asyncio.Lock()):
            if digest not in self._loaded:
                self._loaded[digest] = await self._load(digest, fetch)
            return self._loaded[digest]

    async def _load(self, digest: str, fetch: Fetch) -> ModelText:
        bundle = await asyncio.to_thread(self._from_disk, digest)
        if bundle is None:
            bundle = TokenizerBundle.from_files(await fetch())
            if bundle.digest != digest:
                raise BadTokenizer(f"a worker promised tokenizer {digest} and sent {bundle.digest}")
            await asyncio.to_thread(self._to_disk, bundle)
        try:
            return await asyncio.to_thread(tokenizer.load, bundle.files)
        except Exception as error:  # the tokenizers library raises bare Exceptions
            raise BadTokenizer(f"tokenizer {digest} cannot be loaded: {error}") from error

    def _path(self, digest: str) -> Path | None:
        """Where `digest` lies; a digest comes from a worker and must be a plain name."""
        return self._directory / digest if self._directory and re.fullmatch(r"[A-Za-z0-9_-]{8,128}", digest) else None

    def _from_disk(self, digest: str) -> TokenizerBundle | None:
        path = self._path(digest)
        try:
            bundle = TokenizerBundle.from_directory(path) if path and path.is_dir() else None
        except (OSError, ValueError):
            return None  # half a tokenizer is none: it is fetched, and written, again
        return bundle if bundle and bundle.digest == digest else None

    def _to_disk(self, bundle: TokenizerBundle) -> None:
        path = self._path(bundle.digest)
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
                files = bundle.write_to(Path(scratch) / "files")
                shutil.rmtree(path, ignore_errors=True)
                files.rename(path)
        except OSError as error:  # another process was first, or the disk is read-only: the cache only saves a download
            log.info("tokenizer %s is not kept in %s: %s", bundle.digest, path.parent, error)
