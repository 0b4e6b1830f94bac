"""A network between two processes of a test: a TCP proxy that can go silent, as a cable does when it is pulled."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Cable:
    """Forwards from `target` to one address. While it is `pull`ed nothing passes, either way, and nobody is told."""

    def __init__(self, address: str):
        self._address = address
        self._whole = asyncio.Event()
        self._whole.set()
        self._ends: set[asyncio.StreamWriter] = set()
        self.target = ""

    def pull(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    async def join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it."""
        host, port = self._address.rsplit(":", 1)
        try:
            there = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        self._ends |= {writer, there[1]}
        pumps = [asyncio.create_task(self._pump(*pair)) for pair in ((reader, there[1]), (there[0], writer))]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        for end in (writer, there[1]):
            end.close()
            self._ends.discard(end)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self._whole.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            return

    def cut(self) -> None:
        """End every connection."""
        for end in list(self._ends):
            end.transport.abort()


@asynccontextmanager
async def cable(address: str) -> AsyncIterator[Cable]:
    """A cable to `address`, on a free port of 127.0.0.1."""
    line = Cable(address)
    server = await asyncio.start_server(line.join, "127.0.0.1", 0)
    line.target = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield line
    finally:
        server.close()
        line.mend()
        line.cut()
