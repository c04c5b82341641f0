"""The members of an archive, taken one by one: the bad refused, the wanted written, all counted."""

from __future__ import annotations

import lzma
import os
import posixpath
import shutil
import struct
import tarfile
import zipfile
import zlib
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path
from typing import IO, NoReturn

from porter.errors import ArchiveError
from porter.sources.rules import UnpackRules

# Time of every unpacked file: an edit moves it, so an edited tree is told from a whole one without hashing it.
MTIME_NS = 946_684_800 * 10**9
# What the readers of the standard library raise at bytes that are not what they should be.
_CORRUPT = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, struct.error, ValueError,
    NotImplementedError, OverflowError,
)  # fmt: skip
_CHUNK = 1 << 18
_PATH_BYTES = 1024
_NAME_BYTES = 255


def archive_error(archive: str, why: str, member: str | None = None) -> ArchiveError:
    """The error for an archive or one of its members (shown printably and cut short)."""
    shown = f"member {member[:200]!r} " if member is not None else ""
    return ArchiveError(
        f"{shown}{why}",
        path=archive,
        fix="check the index, or read an unpacked copy: `porter sync --vendor NAME=PATH` or `--upstream PATH`",
    )


@contextmanager
def reading(archive: str, member: str | None = None) -> Iterator[None]:
    """Turn whatever reading an archive raises into an error about it.

    Kept apart from writing: a failing disk must not be taken for a corrupt archive, nor an archive that makes the
    standard library seek to nowhere for a failing disk.

    Raises:
        ArchiveError: the bytes are not what they should be.
    """
    try:
        yield
    except (*_CORRUPT, RuntimeError, OSError) as error:
        why = f"is truncated or corrupt: {error or type(error).__name__}"
        raise archive_error(archive, why, member) from error


@dataclass(frozen=True)
class _Link:
    path: str
    target: str


class Members:
    """Takes members one by one, refuses the bad, writes the wanted, counts all."""

    def __init__(self, archive: str, dest: Path, rules: UnpackRules, size: int) -> None:
        self.archive = archive
        self.dest = dest
        self.rules = rules
        self.size = size
        self.files: dict[str, int] = {}
        self.left_out: set[str] = set()
        self.total = 0
        self._members = 0
        self._folders: set[str] = set()
        self._links: dict[str, _Link] = {}
        if size > rules.limits.archive_bytes:
            self.refuse(f"is {size} bytes, more than the {rules.limits.archive_bytes} allowed")

    def refuse(self, why: str, member: str | None = None) -> NoReturn:
        raise archive_error(self.archive, why, member)

    def member(self, raw: str, *, folder: bool = False) -> str:
        """Check a member's name and return it as a clean relative POSIX path ("" for the archive's own folder)."""
        self._count()
        if not raw or raw.startswith("/") or raw[1:2] == ":":
            self.refuse("has an absolute or empty path", raw)
        if "\\" in raw or any(ord(char) < 32 or char == "\x7f" for char in raw):
            self.refuse("has a backslash or a control character in its path", raw)
        try:
            raw.encode("utf-8")
        except UnicodeEncodeError:
            self.refuse("has a path that is not UTF-8", raw)
        parts = [part for part in raw.split("/") if part not in ("", ".")]
        if ".." in parts:
            self.refuse("leads out of the archive", raw)
        path = "/".join(parts)
        self._measure(path)
        if folder:
            self._own(path)
        elif not path:
            self.refuse("has an absolute or empty path", raw)
        elif path in self.files or path in self.left_out or path in self._links:
            self.refuse("stands twice in the archive", raw)
        elif path in self._folders:
            self.refuse("is a folder and a file at once", raw)
        else:
            self._own(posixpath.dirname(path))
        return path

    def _measure(self, path: str) -> None:
        # Before anything is kept of it: a path of a million folders would fill the memory with its parents.
        if len(path.encode()) > _PATH_BYTES or any(len(part.encode()) > _NAME_BYTES for part in path.split("/")):
            self.refuse("has too long a path", path)

    def _own(self, folder: str) -> None:
        """Note a folder and those above it."""
        while folder and folder not in self._folders:
            if folder in self.files or folder in self.left_out or folder in self._links:
                self.refuse("is a folder and a file at once", folder)
            self._folders.add(folder)
            folder = posixpath.dirname(folder)

    def _count(self) -> None:
        self._members += 1
        if self._members > self.rules.limits.members:
            self.refuse(f"holds more than {self.rules.limits.members} members")

    def spend(self, amount: int) -> None:
        """Count unpacked bytes, wanted or not."""
        limits = self.rules.limits
        self.total += amount
        if self.total > limits.total_bytes:
            self.refuse(f"unpacks to more than {limits.total_bytes} bytes")
        if self.total > limits.ratio_floor and self.total > limits.ratio * max(self.size, 1):
            self.refuse(f"unpacks to more than {limits.ratio} times its size")

    def expect(self, declared: int, path: str) -> None:
        """Check the size that a header gives before anything relies on it."""
        if not 0 <= declared <= self.rules.limits.total_bytes:
            self.refuse(
                f"gives its size as {declared} bytes, more than the {self.rules.limits.total_bytes} allowed", path
            )

    def leave_out(self, path: str) -> None:
        """Note a member that is not unpacked."""
        self.left_out.add(path)

    def write(self, path: str, stream: IO[bytes], declared: int) -> None:
        """Write a wanted file. ``declared`` is the size that its header gives.

        Raises:
            ArchiveError: larger or smaller than declared, or than the limit.
        """
        limit = self.rules.limits.file_bytes
        if declared > limit:
            self.refuse(f"is {declared} bytes, more than the {limit} allowed", path)
        written = 0
        with self._create(path) as out:
            while True:
                with reading(self.archive, path):
                    chunk = stream.read(_CHUNK)
                if not chunk:
                    break
                written += len(chunk)
                if written > declared:
                    self.refuse("is larger than its header says", path)
                out.write(chunk)
        if written != declared:
            self.refuse("is truncated", path)
        self._close(path, written)

    def _create(self, path: str) -> IO[bytes]:
        target = self.dest / path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            return target.open("xb")
        except FileExistsError:
            # A file system that does not tell upper from lower case.
            self.refuse("stands twice in the archive", path)

    def _close(self, path: str, size: int) -> None:
        os.utime(self.dest / path, ns=(MTIME_NS, MTIME_NS))
        self.files[path] = size

    def link(self, path: str, target: str, *, base: str) -> None:
        """Note a link; ``target`` is relative to ``base``, a folder of the archive.

        Raises:
            ArchiveError: it leads out of the archive.
        """
        joined = posixpath.normpath(posixpath.join(base, target)) if target else ""
        outside = joined == ".." or joined.startswith("../") or target.startswith("/")
        if not target or outside or "\\" in target or "\x00" in target:
            self.refuse(f"is a link that leads out of the archive, to {target!r}", path)
        self._links[path] = _Link(path, joined)
        if len(self._links) > self.rules.limits.links:
            self.refuse(f"holds more than {self.rules.limits.links} links")

    def copy_links(self) -> None:
        """Make copies of what links inside the archive name, files and folders.

        Links to what was left out are left out with it.
        """
        waiting = dict(self._links)
        while waiting:
            # Links inside a linked folder come first; those that lead nowhere hold nothing up.
            ready = self._ready(waiting, waiting) or self._ready(waiting, {})
            if not ready:
                break
            for path, found in ready.items():
                del waiting[path], self._links[path]
                for source, copy in found:
                    self._copy(source, copy)
        self.left_out.update(waiting)

    def _ready(self, waiting: dict[str, _Link], first: dict[str, _Link]) -> dict[str, list[tuple[str, str]]]:
        names = sorted(self.files)
        return {path: found for path, link in waiting.items() if (found := self._targets(link, first, names))}

    def _targets(self, link: _Link, first: dict[str, _Link], names: list[str]) -> list[tuple[str, str]]:
        """What to copy for a link, as (file, copy): nothing while it leads to what is not there, or into itself."""
        if link.target in self.files:
            return [(link.target, link.path)] if self.rules.wants(link.path) else []
        prefix = "" if link.target == "." else link.target + "/"
        start = bisect_left(names, prefix)
        inside = list(takewhile(lambda name: name.startswith(prefix), islice(names, start, None)))
        if not inside or (link.path + "/").startswith(prefix) or any(path.startswith(prefix) for path in first):
            return []
        return [(name, f"{link.path}/{name[len(prefix) :]}") for name in inside]

    def _copy(self, source: str, copy: str) -> None:
        self._count()
        self.spend(self.files[source])
        self._measure(copy)
        with (self.dest / source).open("rb") as stream, self._create(copy) as out:
            shutil.copyfileobj(stream, out, _CHUNK)
        self._close(copy, self.files[source])
