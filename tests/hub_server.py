"""A hub on loopback: what huggingface_hub asks of the real one, answered from a folder, and its ways to fail.

Models can be pushed to it too: it makes the repository, takes large files by LFS, and changes the folder by a commit.
"""

import base64
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
    exists: bool = True  # the repository; False until it is created
    private: bool = False
    token: str = "hf_of_the_tests"  # with which one may write
    refuses: dict[str, int] = field(default_factory=dict[str, int])  # what is written: "create", "commit" → status
    commit: str = COMMIT
    objects: dict[str, bytes] = field(default_factory=dict[str, bytes])  # sha256 → a large file that was sent
    commits: list[list[str]] = field(default_factory=list[list[str]])  # what each commit added and deleted
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

    def change(self, lines: list[bytes]) -> str:
        """Carry out a commit, which comes as lines of JSON; its number, or "" if it is for another state."""
        entries = [json.loads(line) for line in lines if line.strip()]
        if entries[0]["value"].get("parentCommit", self.commit) != self.commit:
            return ""
        for entry in entries[1:]:
            value = entry["value"]
            if entry["key"] == "deletedFile":
                (self.folder / value["path"]).unlink()
            elif entry["key"] == "lfsFile":
                (self.folder / value["path"]).write_bytes(self.objects[value["oid"]])
            else:
                (self.folder / value["path"]).write_bytes(base64.b64decode(value["content"]))
        self.commits.append([f"{entry['key']} {entry['value']['path']}" for entry in entries[1:]])
        self.commit = hashlib.sha1(self.commit.encode()).hexdigest()
        return self.commit


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

        def do_POST(self) -> None:
            self._take()

        def do_PUT(self) -> None:
            self._take()

        def _take(self) -> None:
            """Something that is pushed."""
            path, body = urlsplit(self.path).path, self._read()
            hub.asked.append(f"{self.command} {path}")
            is_object = path.startswith("/lfs/")  # the address itself permits these
            if not is_object and self.headers.get("Authorization") != f"Bearer {hub.token}":
                return self._send_json(401, {"error": "Invalid credentials in Authorization header"})
            if path == "/api/repos/create":
                return self._create(json.loads(body))
            if path == "/api/validate-yaml":
                return self._send_json(200, {"warnings": [], "errors": []})
            if path == f"/api/models/{hub.repository}/preupload/main":
                modes = [
                    {"path": each["path"], "shouldIgnore": False, "oid": None} for each in json.loads(body)["files"]
                ]
                for mode in modes:
                    mode["uploadMode"] = "lfs" if mode["path"].endswith(".safetensors") else "regular"
                return self._send_json(200, {"files": modes})
            if path == f"/{hub.repository}.git/info/lfs/objects/batch":
                objects = json.loads(body)["objects"]
                for each in objects:
                    each["actions"] = {"upload": {"href": f"{hub.address}/lfs/{each['oid']}"}}
                return self._send_json(200, {"transfer": "basic", "objects": objects})
            if is_object:
                assert hashlib.sha256(body).hexdigest() == path.rpartition("/")[2]
                hub.objects[path.rpartition("/")[2]] = body
                return self._send_json(200, {})
            if path == f"/api/models/{hub.repository}/commit/main":
                if status := hub.refuses.get("commit"):
                    return self._send_json(status, {"error": "the tests refuse this commit"})
                commit = hub.change(body.splitlines())
                url = f"{hub.address}/{hub.repository}/commit/{commit}"
                return self._send_json(200 if commit else 412, {"commitUrl": url, "commitOid": commit, "success": True})
            return self._send_json(404, {"error": "not found"})

        def _create(self, asked: dict[str, object]) -> None:
            if status := hub.refuses.get("create"):
                return self._send_json(status, {"error": "You don't have the rights to create a model there"})
            assert f"{asked['organization']}/{asked['name']}" == hub.repository
            if hub.exists:
                return self._send_json(409, {"error": "You already created this model repo"})
            hub.exists, hub.private = True, asked.get("visibility") == "private"
            return self._send_json(200, {"url": f"{hub.address}/{hub.repository}"})

        def _read(self) -> bytes:
            """The body of a request: of a known length, or in chunks."""
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def _send_json(self, status: int, facts: object) -> None:
            self._send(status, json.dumps(facts).encode(), {"Content-Type": "application/json"})

        def _answer(self) -> None:
            path = urlsplit(self.path).path
            hub.asked.append(f"{self.command} {path}")
            if not hub.exists:
                return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "not found"})
            if hub.gated:
                return self._send(hub.gated, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "ask first"})
            if re.fullmatch(rf"/api/models/{hub.repository}(/revision/\w+)?", path):
                names = [{"rfilename": each["path"]} for each in hub.entries()]
                facts = {"id": hub.repository, "modelId": hub.repository, "sha": hub.commit, "siblings": names}
                facts["private"] = hub.private
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
            headers = {"X-Repo-Commit": hub.commit, "ETag": f'"{digest.hexdigest()}"', "Accept-Ranges": "bytes"}
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
            if self.command != "HEAD":
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
