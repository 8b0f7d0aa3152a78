"""The page and its files: read once, from a fixed table, so that no address in a request is ever a path."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from vitrail.serving.problems import Problem

FOLDER = Path(__file__).parent
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".webp": "image/webp",
    ".json": "application/json",
}


class File(NamedTuple):
    """What is sent for one name."""

    data: bytes
    kind: str


def read_files(folder: Path) -> dict[str, File]:
    """Name → file, for the files of a folder that have a known type."""
    if not folder.is_dir():
        return {}
    paths = sorted(path for path in folder.iterdir() if path.suffix in TYPES)
    return {path.name: File(path.read_bytes(), TYPES[path.suffix]) for path in paths}


class Page:
    """The handlers of the page."""

    def __init__(self) -> None:
        self._page = read_files(FOLDER / "page")
        self._examples = read_files(FOLDER / "examples")

    async def index(self, request: Request) -> Response:
        return _send(self._page, "index.html")

    async def static(self, request: Request) -> Response:
        return _send(self._page, request.path_params["name"])

    async def example(self, request: Request) -> Response:
        return _send(self._examples, request.path_params["name"])


def _send(files: Mapping[str, File], name: str) -> Response:
    file = files.get(name)
    if file is None:
        raise Problem("not_found", "there is no such file.")
    return Response(file.data, headers={"content-type": file.kind, "cache-control": "no-cache"})
