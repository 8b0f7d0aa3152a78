"""Downloads: whole, resumed, checked, or an error that says what to do."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from vitrail.data import DataConfig, open_data
from vitrail.data import datasets as opening
from vitrail.data.download import Remote, fetch
from vitrail.errors import DataError

CONTENT = bytes(range(256)) * 4000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves CONTENT; knows ranges if asked to, and can hang up early."""

    ranges = True
    hang_up_after: int | None = None
    asked: list[str | None]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        start = 0
        asked = self.headers.get("Range")
        self.server.asked.append(asked)
        if self.server.ranges and asked:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
        if start >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if self.server.ranges and asked else 200)
        self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        stop = self.server.hang_up_after
        self.wfile.write(CONTENT[start : None if stop is None else start + stop])

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    web = Server(("127.0.0.1", 0), Handler)
    web.asked = []
    thread = threading.Thread(target=web.serve_forever)
    thread.start()
    yield web
    web.shutdown()
    thread.join()
    web.server_close()


def remote(server: Server, md5: str | None = MD5) -> Remote:
    return Remote(url=f"http://127.0.0.1:{server.server_port}/files/x.bin", md5=md5)


def test_a_file_is_fetched_once(server: Server, tmp_path: Path) -> None:
    for _ in range(2):
        assert fetch(remote(server), tmp_path / "new").read_bytes() == CONTENT
    assert len(server.asked) == 1
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["x.bin"]


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_download_continues(server: Server, tmp_path: Path, ranges: bool) -> None:
    server.ranges = ranges
    server.hang_up_after = 300_000
    with pytest.raises(DataError, match=r"cannot download .*Run again to continue.*data_dir="):
        fetch(remote(server), tmp_path)
    assert not (tmp_path / "x.bin").exists()
    assert (tmp_path / "x.bin.part").stat().st_size == 300_000
    server.hang_up_after = None
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT
    assert server.asked[-1] == "bytes=300000-"


def test_a_complete_part_is_only_checked(server: Server, tmp_path: Path) -> None:
    (tmp_path / "x.bin.part").write_bytes(CONTENT)
    assert fetch(remote(server), tmp_path).read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing(server: Server, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the checksum of the download differs from 0000"):
        fetch(remote(server, md5="0000"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_server_and_other_addresses(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot download http://127.0.0.1:1/x"):
        fetch(Remote(url="http://127.0.0.1:1/x"), tmp_path)
    with pytest.raises(DataError, match="only http and https"):
        fetch(Remote(url="file:///etc/passwd"), tmp_path)


def test_named_sets_are_looked_for_before_they_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refuse(remote: Remote, folder: Path) -> Path:
        asked.append(f"{folder.name}/{remote.name}")
        raise DataError("no network")

    monkeypatch.setattr(opening, "fetch", refuse)
    for name in ("cifar10", "cifar100", "mnist", "fashion-mnist"):
        with pytest.raises(DataError, match="no network"):
            open_data(name, DataConfig(data_dir=tmp_path / "data"))
    assert asked == [
        "data/cifar-10-binary.tar.gz",
        "data/cifar-100-binary.tar.gz",
        "mnist/train-images-idx3-ubyte.gz",
        "fashion-mnist/train-images-idx3-ubyte.gz",
    ]


def cifar_archive(folder: Path) -> Path:
    """CIFAR-10 with ten pictures a batch, under names that point elsewhere."""
    archive = folder / "cifar-10-binary.tar.gz"
    record = b"".join(bytes([label]) + bytes(3072) for label in range(10))
    with tarfile.open(archive, "w:gz") as tar:
        for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
            entry = tarfile.TarInfo(f"../../evil/{name}")
            entry.size = len(record)
            tar.addfile(entry, io.BytesIO(record))
    return archive


def test_a_fetched_archive_is_unpacked_flat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = cifar_archive(tmp_path)

    def give(remote: Remote, folder: Path) -> Path:
        return archive

    monkeypatch.setattr(opening, "fetch", give)
    data = open_data("cifar10", DataConfig(data_dir=tmp_path / "data"))
    assert len(data.splits["train"]) == 50
    assert not (tmp_path / "evil").exists()
    assert len(list((tmp_path / "data" / "cifar-10-batches-bin").iterdir())) == 6


def test_a_set_of_several_files_continues_with_the_missing_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"whole")
    asked: list[str] = []

    def give(remote: Remote, folder: Path) -> Path:
        asked.append(remote.name)
        if remote.name.startswith("t10k-labels"):
            raise DataError("no network")
        return folder / remote.name

    monkeypatch.setattr(opening, "fetch", give)
    with pytest.raises(DataError, match="no network"):
        open_data("mnist", DataConfig(data_dir=tmp_path))
    assert len(asked) == 4


def test_an_unpacking_that_was_cut_short_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = cifar_archive(tmp_path)
    monkeypatch.setattr(opening, "fetch", lambda *_: archive)
    write = Path.write_bytes

    def fail(path: Path, data: bytes) -> int:
        if path.name == "data_batch_3.bin":
            raise OSError(28, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(DataError, match="No space left"):
        open_data("cifar10", DataConfig(data_dir=tmp_path / "data"))
    monkeypatch.setattr(Path, "write_bytes", write)
    assert len(open_data("cifar10", DataConfig(data_dir=tmp_path / "data")).splits["train"]) == 50
