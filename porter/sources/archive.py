"""Safe unpacking: an archive is untrusted input.

Nothing outside the destination is ever written: absolute paths, ``..``, devices and links that lead out are refused,
and links that stay inside become copies, so no link ever exists on disk. Amounts are limited as bytes are produced, not
as headers declare them. Only text that porter can read is unpacked; compiled libraries are left out.
"""

from __future__ import annotations

import json
import os
import posixpath
import shutil
import stat
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from porter.sources.cache import cache_errors
from porter.sources.members import MTIME_NS, Members, archive_error, reading
from porter.sources.progress import Progress, Task
from porter.sources.rules import DEFAULT_RULES, UnpackRules
from porter.sources.tarstream import TAR_SUFFIXES, read_tar

ZIP_SUFFIXES = (".zip", ".whl")

_MARKER = "unpacked.json"
_TREE = "tree"
_LINK_BYTES = 4096


def is_archive(filename: str) -> bool:
    """Does porter unpack files of this name?"""
    return filename.lower().endswith((*TAR_SUFFIXES, *ZIP_SUFFIXES))


def unpack(archive: Path, folder: Path, *, sha256: str, progress: Progress, rules: UnpackRules = DEFAULT_RULES) -> Path:
    """Unpack an archive and return the folder that holds its members.

    ``folder`` appears by a rename once all is written; what an earlier, killed or damaged, run left there is removed.
    The caller holds the cache's lock on it.

    Parameters:
        archive: the file; its name tells its format.
        folder: folder to make.
        sha256: the archive's digest, recorded in the marker.
        progress: shows the bytes of the archive read.
        rules: what to unpack.

    Raises:
        ArchiveError: truncated, corrupt, not an archive, a member that must not be unpacked, a limit exceeded.
        SourceError: the folder cannot be written.
    """
    partial = folder.with_name(folder.name + ".partial")
    with cache_errors(folder):
        size = archive.stat().st_size
        shutil.rmtree(partial, ignore_errors=True)
        (partial / _TREE).mkdir(parents=True)
        try:
            sink = Members(archive.name, partial / _TREE, rules, size)
            read = _reader(archive.name)
            with progress.task(f"unpacking {archive.name}", size, "bytes") as task:
                read(archive, sink, task)
                sink.copy_links()
            _write_marker(partial / _MARKER, archive.name, sha256, rules, sink)
            if folder.exists():
                shutil.rmtree(folder)
            os.replace(partial, folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return folder / _TREE


def unpacked_tree(folder: Path, *, sha256: str, rules: UnpackRules = DEFAULT_RULES) -> Path | None:
    """The members' folder if ``folder`` holds that archive, whole and untouched; else None.

    Every file is asked for its size and time, none is read. Byte-code folders that an import left are no change.
    """
    try:
        marker = json.loads((folder / _MARKER).read_bytes())
        if marker["sha256"] != sha256 or marker["rules"] != rules.digest:
            return None
        expected = {str(path): int(size) for path, size in marker["files"]}
        found = dict(_walk(folder / _TREE, ""))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return folder / _TREE if found == expected else None


def _walk(folder: Path | str, prefix: str) -> Iterator[tuple[str, int]]:
    """Relative path and size of each file; size -1 where its time says that it was touched."""
    for entry in list(os.scandir(folder)):
        if entry.is_dir(follow_symlinks=False):
            if entry.name != "__pycache__":
                yield from _walk(entry.path, f"{prefix}{entry.name}/")
        else:
            info = entry.stat(follow_symlinks=False)
            whole = stat.S_ISREG(info.st_mode) and info.st_mtime_ns == MTIME_NS
            yield prefix + entry.name, info.st_size if whole else -1


def _write_marker(path: Path, archive: str, sha256: str, rules: UnpackRules, sink: Members) -> None:
    data = {
        "archive": archive,
        "sha256": sha256,
        "rules": rules.digest,
        "left_out": len(sink.left_out),
        "files": sorted([name, size] for name, size in sink.files.items()),
    }
    with path.open("w", encoding="utf-8") as stream:
        json.dump(data, stream, ensure_ascii=False)
        stream.flush()
        os.fsync(stream.fileno())


type _Reader = Callable[[Path, Members, Task], None]


def _reader(name: str) -> _Reader:
    if name.lower().endswith(ZIP_SUFFIXES):
        return _read_zip
    if name.lower().endswith(tuple(TAR_SUFFIXES)):
        return read_tar
    raise archive_error(name, f"is of no known format; known: {', '.join((*TAR_SUFFIXES, *ZIP_SUFFIXES))}")


def _read_zip(archive: Path, sink: Members, task: Task) -> None:
    with archive.open("rb") as raw:
        with reading(archive.name):
            bundle = zipfile.ZipFile(raw)
        with bundle:
            for info in bundle.infolist():
                _take(info, bundle, sink)
                task.advance(info.compress_size)


def _take(info: zipfile.ZipInfo, bundle: zipfile.ZipFile, sink: Members) -> None:
    """Deal with one member of a zip archive."""
    path = sink.member(info.orig_filename, folder=info.is_dir())
    sink.spend(info.file_size)
    if info.is_dir():
        return
    if info.flag_bits & 0x1:
        sink.refuse("is encrypted", path)
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind == stat.S_IFLNK:
        if info.file_size > _LINK_BYTES:
            sink.refuse("is a link with too long a target", path)
        with reading(sink.archive, path):
            target = bundle.read(info).decode("utf-8")
        sink.link(path, target, base=posixpath.dirname(path))
    elif kind not in (0, stat.S_IFREG):
        sink.refuse("is neither a file nor a folder", path)
    elif sink.rules.wants(path):
        with reading(sink.archive, path):
            stream = bundle.open(info)
        with stream:
            sink.write(path, stream, info.file_size)
    else:
        sink.leave_out(path)
