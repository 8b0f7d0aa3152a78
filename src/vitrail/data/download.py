"""Downloads: resumed where they stopped, checked against the publisher's checksum, in place only once complete."""

import hashlib
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from filelock import FileLock

from vitrail.errors import DataError
from vitrail.progress import progress_bar

CHUNK = 1 << 20
TIMEOUT = 30  # seconds without a byte


@dataclass(frozen=True, kw_only=True)
class Remote:
    """One published file."""

    url: str
    md5: str | None = None  # the publisher's checksum; they all publish md5

    @property
    def name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


class WebFolder:
    """Files of a web server, below one address; copies of those that were fetched are kept."""

    def __init__(self, root: str, cache: Path) -> None:
        self.root = root
        self._folder = cache / "shards" / re.sub(r"[^\w.-]+", "_", root)

    def where(self, name: str) -> str:
        return f"{self.root}/{name}"

    def get(self, name: str) -> Path:
        """The copy of a file, fetched if there is none."""
        with self._locked(name):
            return fetch(Remote(url=self.where(name)), self._folder)

    def read_anew(self, name: str) -> bytes:
        """The content of a file that may have changed."""
        with self._locked(name):
            for copy in (name, f"{name}.part"):
                (self._folder / copy).unlink(missing_ok=True)
            return fetch(Remote(url=self.where(name)), self._folder).read_bytes()

    def _locked(self, name: str) -> FileLock:
        """The ranks of one machine share the copies."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return FileLock(self._folder / f"{name}.lock")


def is_web(where: str) -> bool:
    """Whether something is the address of a web server."""
    return where.startswith(("http://", "https://"))


def fetch(remote: Remote, folder: Path) -> Path:
    """The local copy of a file, downloaded if it is not there yet."""
    target = folder / remote.name
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".part")
    try:
        _download(remote.url, partial)
    except (OSError, HTTPException, ValueError) as error:  # URLError and timeouts are OSErrors
        reason = getattr(error, "reason", None) or error
        raise DataError(
            f"cannot download {remote.url} ({reason}). Run again to continue where it stopped; on a machine without "
            f"internet, copy {remote.name} into a folder and pass it as `data_dir=`."
        ) from None
    if remote.md5 and _md5(partial) != remote.md5:
        partial.unlink()
        raise DataError(f"{remote.url}: the checksum of the download differs from {remote.md5}; run again.")
    partial.replace(target)
    return target


def _download(url: str, partial: Path) -> None:
    """Append what is missing; a server without support for ranges sends the whole file again."""
    if not is_web(url):
        raise DataError(f"only http and https addresses can be downloaded; got {url}.")
    have = partial.stat().st_size if partial.is_file() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "vitrail", "Range": f"bytes={have}-"})  # noqa: S310
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)  # noqa: S310
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # nothing is missing
            return
        raise
    with response:
        resumed = response.status == 206
        length = response.headers.get("Content-Length")
        expected = int(length) + (have if resumed else 0) if length else None
        name = f"downloading {url.rsplit('/', 1)[-1]}"
        with partial.open("ab" if resumed else "wb") as file, progress_bar(name, expected) as advance:
            advance(have if resumed else 0)
            while chunk := response.read(CHUNK):
                file.write(chunk)
                advance(len(chunk))
    if expected is not None and partial.stat().st_size != expected:
        raise OSError(f"the connection ended after {partial.stat().st_size:,} of {expected:,} bytes")


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
