"""Writes a plan into a checkout: everything or nothing, and recoverable when killed half way."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from porter.errors import BusyError, TreeError
from porter.seams import manifest
from porter.seams.model import FileChange

_TEMPORARY = ".porter-new"


@contextlib.contextmanager
def locked(checkout: Path) -> Iterator[None]:
    """Hold the checkout for one porter at a time. Raises BusyError at once where another holds it."""
    handle = os.open(checkout, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BusyError(
                "another porter works on this checkout", path=str(checkout), fix="wait for it to end"
            ) from error
        yield
    finally:
        os.close(handle)


def write(
    checkout: Path, changes: Sequence[FileChange], during: manifest.Manifest, after: manifest.Manifest | None
) -> None:
    """Do ``changes``; the manifest says ``during`` while they happen and ``after`` when they are done (None: gone).

    Raises TreeError where the file system refuses; what was changed until then is put back.
    """
    before = manifest.read(checkout)
    done: list[FileChange] = []
    temporary: list[Path] = []
    try:
        for path in during.paths:
            _staged(checkout / path).unlink(missing_ok=True)  # left by one that was killed
        _write_manifest(checkout, during)
        for change in changes:
            if change.after is not None:
                temporary.append(_staged(checkout / change.path))
                _stage(checkout / change.path, change.after, change.mode)
        for change in changes:
            done.append(change)
            target = checkout / change.path
            if change.after is None:
                target.unlink(missing_ok=True)
            else:
                os.replace(_staged(target), target)
        if after is not None:
            _write_manifest(checkout, after)
    except BaseException as error:
        _put_back(checkout, done, before)
        for leftover in temporary:
            leftover.unlink(missing_ok=True)
        remove_folders(checkout, during.folders, ())
        if not isinstance(error, OSError):
            raise
        raise TreeError(
            f"cannot be written: {error.strerror or error}; nothing was changed",
            path=str(error.filename or checkout),
            fix="mend that, then try again",
        ) from error
    if after is None:
        remove_manifest(checkout)


def new_folders(checkout: Path, paths: Sequence[str]) -> tuple[str, ...]:
    """Folders that ``paths`` need and ``checkout`` has not, outermost first."""
    wanted = {parent.as_posix() for path in paths for parent in Path(path).parents if parent != Path(".")}
    return tuple(sorted(folder for folder in wanted if not (checkout / folder).exists()))


def remove_folders(checkout: Path, folders: Sequence[str], files: Sequence[str]) -> None:
    """Remove ``folders`` that are empty now, with the byte code that Python left for the ``files`` once in them."""
    for file in files:
        path = checkout / file
        for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            cached.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            if path.parent.relative_to(checkout).as_posix() in folders:
                (path.parent / "__pycache__").rmdir()
    for folder in sorted(folders, key=len, reverse=True):
        with contextlib.suppress(OSError):
            (checkout / folder).rmdir()


def remove_manifest(checkout: Path) -> None:
    """Remove the record and its folder."""
    for path in (manifest.PATH, manifest.IGNORE_PATH):
        (checkout / path).unlink(missing_ok=True)
        _staged(checkout / path).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        (checkout / manifest.FOLDER).rmdir()


def _write_manifest(checkout: Path, value: manifest.Manifest) -> None:
    folder = checkout / manifest.FOLDER
    folder.mkdir(exist_ok=True)
    ignore = checkout / manifest.IGNORE_PATH
    if not ignore.exists():
        ignore.write_bytes(b"*\n")
    target = checkout / manifest.PATH
    _write_synced(_staged(target), value.encode(), 0o644)
    os.replace(_staged(target), target)


def _stage(target: Path, data: bytes, mode: int) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    _write_synced(_staged(target), data, mode)


def _staged(target: Path) -> Path:
    return target.with_name(f"{target.name}{_TEMPORARY}")


def _write_synced(path: Path, data: bytes, mode: int) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


def _put_back(checkout: Path, done: Sequence[FileChange], before: manifest.Manifest | None) -> None:
    for change in reversed(done):
        target = checkout / change.path
        if change.before is None:
            target.unlink(missing_ok=True)
        else:
            _write_synced(_staged(target), change.before, change.mode)
            os.replace(_staged(target), target)
    if before is None:
        remove_manifest(checkout)
    else:
        _write_manifest(checkout, before)
