"""A model hub on 127.0.0.1 that answers as huggingface.co does. Source: the HTTP API that huggingface_hub calls."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "c0ffee" * 6 + "abcd"
_ERRORS = {"nobody/missing": (404, "RepoNotFound"), "someone/gated": (403, "GatedRepo"), "someone/broken": (500, "")}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    directory: Path
    asked: list[str]

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Say nothing."""

    def _answer(self, *, body: bool) -> None:
        self.asked.append(self.path)
        parts = self.path.partition("?")[0].strip("/").split("/")
        repository = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        if repository in _ERRORS:
            status, code = _ERRORS[repository]
            self._send(status, b"{}", {"X-Error-Code": code} if code else {}, body=body)
        elif parts[0] == "api":
            content = self._tree() if "tree" in parts else {"id": repository, "sha": COMMIT}
            self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"}, body=body)
        else:
            self._file(parts[-1], body=body)

    def _tree(self) -> list[dict[str, object]]:
        return [
            {
                "type": "file",
                "path": path.name,
                "size": path.stat().st_size,
                "oid": hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest(),
            }
            for path in sorted(self.directory.iterdir())
        ]

    def _file(self, name: str, *, body: bool) -> None:
        path = self.directory / name
        if not path.is_file():
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, body=body)
            return
        content = path.read_bytes()
        etag = hashlib.sha256(content).hexdigest()
        self._send(200, content, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, body=body)

    def _send(self, status: int, content: bytes, headers: Mapping[str, str], *, body: bool) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)


@contextmanager
def hub(directory: Path) -> Iterator[tuple[str, list[str]]]:
    """Serves `directory` as every model's but those of `_ERRORS`. Gives the endpoint and, as they come, the paths asked for."""
    asked: list[str] = []
    handler = type("Handler", (_Handler,), {"directory": directory, "asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join(10)
