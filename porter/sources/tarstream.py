"""Reading a compressed tar archive as a stream that is not trusted."""

from __future__ import annotations

import bz2
import gzip
import lzma
import posixpath
import tarfile
from collections.abc import Callable
from io import RawIOBase
from pathlib import Path
from tarfile import HeaderError
from typing import IO, Any, Self

from porter.sources.members import Members, archive_error, reading
from porter.sources.progress import Task

TAR_SUFFIXES = {".tar.gz": "gz", ".tgz": "gz", ".tar.bz2": "bz2", ".tbz": "bz2", ".tar.xz": "xz", ".txz": "xz"}

_CHUNK = 1 << 18
# Bytes that one header, with its extended ones, may take; and tarfile's read-ahead.
_HEADER_BYTES = 1 << 20
_READ_AHEAD = 4 * tarfile.RECORDSIZE
# Classes of tarfile that say that a stream ends here.
_ENDS = ("EOFHeaderError", "EmptyHeaderError")


def read_tar(archive: Path, sink: Members, task: Task) -> None:
    """Hand every member of a compressed tar archive to ``sink``.

    Raises:
        ArchiveError: as ``sink`` says, or a stream that is cut or corrupt.
    """
    with archive.open("rb") as raw:
        source = _Inflated(archive.name, raw, sink, task)
        source.allow(_HEADER_BYTES)
        with reading(archive.name):
            bundle = tarfile.open(fileobj=source, mode="r|", tarinfo=_Header, encoding="utf-8")  # noqa: SIM115
        with bundle:
            while True:
                with reading(archive.name):
                    member = bundle.next()
                if member is None:
                    break
                skipped = _take(member, bundle, source, sink)
                source.allow(_HEADER_BYTES + skipped)
        # The checksum of the compressed stream stands at its end.
        source.drain()


def _take(member: tarfile.TarInfo, bundle: tarfile.TarFile, source: _Inflated, sink: Members) -> int:
    """Deal with one member; gives how many bytes of it are left unread."""
    path = sink.member(member.name, folder=member.isdir())
    if member.isdir():
        return 0
    if member.issym():
        sink.link(path, member.linkname, base=posixpath.dirname(path))
        return 0
    if member.islnk():
        sink.link(path, member.linkname, base="")
        return 0
    if not member.isreg() or member.issparse():
        sink.refuse("is neither a file nor a folder", path)
    sink.expect(member.size, path)
    if not sink.rules.wants(path):
        sink.leave_out(path)
        return member.size
    source.allow(member.size)
    stream = bundle.extractfile(member)
    assert stream is not None
    with stream:
        sink.write(path, stream, member.size)
    return 0


class _Header(tarfile.TarInfo):
    """tarfile takes a damaged header for the end of the archive; here only an end is an end."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tarfile)
        except HeaderError as error:
            if type(error).__name__ in _ENDS:
                raise
            raise EOFError(f"damaged header: {error}") from error


class _Inflated(RawIOBase):
    """The decompressed stream of a tar archive, with a budget.

    ``allow`` says how many bytes the next step may take: a header that declares more of itself than a header may have
    is stopped before it fills the memory.
    """

    def __init__(self, archive: str, raw: IO[bytes], sink: Members, task: Task) -> None:
        super().__init__()
        self._archive = archive
        self._raw = raw
        self._sink = sink
        self._task = task
        self._seen = 0
        self._ceiling = 0
        self.produced = 0
        kind = next(kind for suffix, kind in TAR_SUFFIXES.items() if archive.lower().endswith(suffix))
        self._stream: IO[bytes] = _OPENERS[kind](raw)

    def readable(self) -> bool:
        return True

    def allow(self, amount: int) -> None:
        self._ceiling = self.produced + amount + _READ_AHEAD

    def read(self, size: int = -1, /) -> bytes:
        if size < 0:
            raise ValueError("unbounded read")
        with reading(self._archive):
            chunk = self._stream.read(size)
        self.produced += len(chunk)
        self._sink.spend(len(chunk))
        if self.produced > self._ceiling:
            raise archive_error(self._archive, "has a header that is too large")
        seen = self._raw.tell()
        self._task.advance(seen - self._seen)
        self._seen = seen
        return chunk

    def drain(self) -> None:
        """Read to the end, within the limits."""
        while True:
            self.allow(_CHUNK)
            if not self.read(_CHUNK):
                return


_OPENERS: dict[str, Callable[[IO[bytes]], Any]] = {
    "gz": lambda raw: gzip.GzipFile(fileobj=raw, mode="rb"),
    "bz2": lambda raw: bz2.BZ2File(raw, "rb"),
    "xz": lambda raw: lzma.LZMAFile(raw, "rb"),  # noqa: SIM115
}
