"""A hub on loopback: what huggingface_hub asks of the real one, answered from a folder, and its ways to fail."""

import hashlib
import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Hub:
    """What the server has, how it misbehaves, and what it was asked for."""

    repository: str
    folder: Path
    address: str = ""
    cut_at: int = 0  # bytes of the weights after which the first connection breaks
    damage: bool = False  # the weights on their way
    gated: int = 0  # the status that answers everything: 401 or 403
    asked: list[str] = field(default_factory=list[str])  # "METHOD path"
    ranges: list[str] = field(default_factory=list[str])  # of the weights
    sent: int = 0  # bytes of the weights

    def entries(self) -> list[dict[str, object]]:
        listed: list[dict[str, object]] = []
        for path in sorted(self.folder.iterdir()):
            entry: dict[str, object] = {"type": "file", "path": path.name, "size": path.stat().st_size}
            entry["oid"] = hashlib.sha1(path.read_bytes()).hexdigest()
            if path.suffix == ".safetensors":
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                entry["lfs"] = {"oid": digest, "size": path.stat().st_size, "pointerSize": 134}
            listed.append(entry)
        return listed


@contextmanager
def serve_hub(repository: str, folder: Path) -> Generator[Hub]:
    """A hub with the files of a folder under a name, while the block lasts."""
    hub = Hub(repository, folder)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            path = urlsplit(self.path).path
            hub.asked.append(f"{self.command} {path}")
            if hub.gated:
                return self._send(hub.gated, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "ask first"})
            if re.fullmatch(rf"/api/models/{hub.repository}(/revision/\w+)?", path):
                names = [{"rfilename": each["path"]} for each in hub.entries()]
                facts = {"id": hub.repository, "modelId": hub.repository, "sha": COMMIT, "siblings": names}
                return self._send(200, json.dumps(facts).encode(), {"Content-Type": "application/json"})
            if path.startswith(f"/api/models/{hub.repository}/tree/"):
                return self._send(200, json.dumps(hub.entries()).encode(), {"Content-Type": "application/json"})
            if match := re.fullmatch(rf"/{hub.repository}/resolve/\w+/([\w.]+)", path):
                return self._send_file(hub.folder / match[1])
            return self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})

        def _send_file(self, path: Path) -> None:
            if not path.is_file():
                return self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})
            data, is_weights = path.read_bytes(), path.suffix == ".safetensors"
            digest = hashlib.sha256(data) if is_weights else hashlib.sha1(data)
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{digest.hexdigest()}"', "Accept-Ranges": "bytes"}
            if is_weights:
                headers |= {"X-Linked-Etag": headers["ETag"], "X-Linked-Size": str(len(data))}
            if hub.damage and is_weights:
                data = bytes([data[0] ^ 1]) + data[1:]
            wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            start = int(wanted[1]) if wanted else 0
            if wanted:
                headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            if is_weights and self.command == "GET":
                hub.ranges.append(self.headers.get("Range", ""))
                if hub.cut_at:
                    return self._break_off(data, headers)
                hub.sent += len(data) - start
            return self._send(206 if wanted else 200, data[start:], headers)

        def _break_off(self, data: bytes, headers: dict[str, str]) -> None:
            part, hub.cut_at = data[: hub.cut_at], 0
            hub.sent += len(part)
            self._send_head(200, len(data), headers)
            self.wfile.write(part)
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()

        def _send_head(self, status: int, length: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(length), **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self._send_head(status, len(body), headers)
            if self.command == "GET":
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
