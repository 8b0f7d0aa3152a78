"""Other people's tar files: `tarfile` trusts every length in a header, so its reads are limited and counted."""

import io
import tarfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import IO, Any, cast

from vitrail.errors import DataError

PIECE = 1 << 22  # the most that is read at once; no header of an archive of pictures needs more


class _CountedFile:
    """What `tarfile` needs of a file; reading or unpacking more than allowed is an error."""

    def __init__(self, file: IO[bytes], budget: int, *, packed: bool) -> None:
        self._file = file
        self._budget = budget
        self._packed = packed  # skipping costs as much as reading

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size if 0 <= size <= PIECE else PIECE)
        self._spend(len(data))
        return data

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET or not 0 <= offset < 2**62:
            raise OSError(f"a header points to the byte {offset:,}")
        if self._packed:
            self._spend(max(offset - self._file.tell(), 0))
        return self._file.seek(offset)

    def tell(self) -> int:
        return self._file.tell()

    def _spend(self, count: int) -> None:
        self._budget -= count
        if self._budget < 0:
            raise OSError("it unpacks to more than the limit, or goes in circles")


@contextmanager
def open_tar(file: IO[bytes], name: str, budget: int, *, packed: bool = False) -> Generator[tarfile.TarFile]:
    """An opened archive, of which at most `budget` bytes are read; whatever `tarfile` raises becomes a DataError."""
    try:
        counted = cast("Any", _CountedFile(file, budget, packed=packed))
        with tarfile.open(name, "r:", counted) as archive:
            yield archive
    except DataError:
        raise
    except Exception as error:  # a hostile header can make tarfile raise anything
        kind = "not a tar file" if packed else "not an uncompressed tar"
        reason = (str(error) or type(error).__name__)[:300]
        raise DataError(f"{name}: damaged or truncated, or {kind} ({reason}); fetch it again.") from None


def files_of(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The regular files, in order; each begins after the one before it, or the archive is damaged."""
    offset = -1
    for entry in archive:
        if entry.offset_data <= offset or entry.size < 0:
            raise tarfile.ReadError(f"the member at {entry.offset_data:,} is out of order")
        offset = entry.offset_data
        if entry.isfile():
            yield entry


def read_member(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    """The content of a file in an archive, piece by piece."""
    file = archive.extractfile(entry)
    if file is None:
        return b""
    pieces: list[bytes] = []
    while piece := file.read(PIECE):
        pieces.append(piece)
    return b"".join(pieces)
