"""The emitted tree on disk: what porter owns there, and publishing a new version of it all or nothing.

``<out>/.porter/manifest.json`` lists every owned file with its sha256 and the digest of the inputs it came from. While a
publish runs, ``journal.json`` beside it lists what is being written, so that a run killed at any moment is recognised
and repaired by the next.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from porter.codec import dumps
from porter.errors import BusyError, EditedOutputError, TreeError

STATE = ".porter"
MANIFEST = f"{STATE}/manifest.json"
JOURNAL = f"{STATE}/journal.json"
_CACHES = {"__pycache__"}


@dataclass(frozen=True)
class Manifest:
    """Owned files (relative posix path to sha256) and ``inputs``, the digest of all that they were rendered from."""

    files: Mapping[str, str] = field(default_factory=dict)
    inputs: str = ""


@dataclass(frozen=True)
class TreeState:
    """An output folder as it stands.

    ``missing``/``edited``: owned files that are gone or hold other bytes than porter wrote. ``interrupted``: a publish
    was cut short. ``manifest_error``: why the manifest cannot be read, "" when it can.
    """

    manifest: Manifest
    missing: tuple[str, ...] = ()
    edited: tuple[str, ...] = ()
    interrupted: bool = False
    manifest_error: str = ""


@dataclass(frozen=True)
class Changes:
    """What a publish does: files to write that are new, files to write that differ, owned files to remove."""

    created: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        """True when there is something to do."""
        return bool(self.created or self.changed or self.removed)


def sha256(data: bytes) -> str:
    """Hex digest of bytes."""
    return hashlib.sha256(data).hexdigest()


def read_state(out: Path) -> TreeState:
    """Read an output folder. A missing folder is an empty one."""
    manifest, problem = _read_manifest(out / MANIFEST)
    journal, _ = _read_manifest(out / JOURNAL)
    interrupted = (out / JOURNAL).exists()
    missing, edited = [], []
    for path, digest in sorted(manifest.files.items()):
        found = _digest(out / path)
        if found is None:
            missing.append(path)
        elif found != digest and not (interrupted and found == journal.files.get(path)):
            edited.append(path)
    return TreeState(manifest, tuple(missing), tuple(edited), interrupted, problem)


def _read_manifest(path: Path) -> tuple[Manifest, str]:
    try:
        data = json.loads(path.read_bytes())
        files = data["files"]
        if not isinstance(files, dict) or not all(isinstance(v, str) and _is_inside(k) for k, v in files.items()):
            raise ValueError("files must map relative paths to digests")
        return Manifest(files, str(data["inputs"])), ""
    except FileNotFoundError:
        return Manifest(), ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Manifest(), f"{path.name} cannot be read: {error}"


def _is_inside(path: str) -> bool:
    parts = path.split("/")
    return bool(path) and not path.startswith("/") and ".." not in parts and "" not in parts and "\\" not in path


def _digest(path: Path) -> str | None:
    try:
        return sha256(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def plan_changes(out: Path, state: TreeState, files: Mapping[str, bytes]) -> Changes:
    """What publishing ``files`` would do to the folder."""
    created, changed = [], []
    for path, data in sorted(files.items()):
        found = _digest(out / path)
        if found is None:
            created.append(path)
        elif found != sha256(data):
            changed.append(path)
    removed = [path for path in sorted(state.manifest.files) if path not in files and (out / path).is_file()]
    return Changes(tuple(created), tuple(changed), tuple(removed))


@contextmanager
def exclusive(out: Path) -> Iterator[None]:
    """Hold the output folder for one run.

    Raises:
        BusyError: another run holds it. TreeError: the folder cannot be made or written.
    """
    try:
        (out / STATE).mkdir(parents=True, exist_ok=True)
        lock = FileLock(out / STATE / "lock", timeout=0)
        lock.acquire()
    except Timeout as error:
        raise BusyError(
            "another porter is writing here", path=out.name, fix="wait for it to end, then run again"
        ) from error
    except OSError as error:
        raise _tree_error(out.name, error) from error
    try:
        yield
    finally:
        lock.release()


def publish(out: Path, state: TreeState, files: Mapping[str, bytes], inputs: str, *, force: bool = False) -> Changes:
    """Make the folder hold exactly ``files`` among what porter owns.

    Only what differs is written, each file through a temporary one beside it; the manifest comes last. Files that porter
    does not own are never touched: one that stands where porter would write is an error.

    Raises:
        EditedOutputError: an owned file was edited, or an unowned file is in the way, and ``force`` is off.
        TreeError: a file cannot be written.
    """
    changes = plan_changes(out, state, files)
    if not force:
        _refuse_edited(out, state, files, changes)
    manifest = Manifest({path: sha256(data) for path, data in sorted(files.items())}, inputs)
    if not changes.any and not state.interrupted and state.manifest == manifest:
        return changes
    try:
        if changes.any:
            intended = Manifest({**state.manifest.files, **manifest.files}, inputs)
            write_atomic(out / JOURNAL, _manifest_bytes(intended))
        for path in (*changes.created, *changes.changed):
            write_atomic(out / path, files[path])
        for path in changes.removed:
            (out / path).unlink(missing_ok=True)
            _remove_empty(out, (out / path).parent)
        write_atomic(out / MANIFEST, _manifest_bytes(manifest))
        (out / JOURNAL).unlink(missing_ok=True)
    except OSError as error:
        raise _tree_error(out.name, error) from error
    return changes


def _refuse_edited(out: Path, state: TreeState, files: Mapping[str, bytes], changes: Changes) -> None:
    lost = [path for path in state.edited if path not in files or _digest(out / path) != sha256(files[path])]
    journal, _ = _read_manifest(out / JOURNAL)
    foreign = [
        path
        for path in changes.changed
        if path not in state.manifest.files and _digest(out / path) != journal.files.get(path)
    ]
    if lost:
        raise EditedOutputError(
            f"{len(lost)} generated file{'s were' if len(lost) > 1 else ' was'} edited by hand: {', '.join(lost[:5])}; move the edits to overrides/",
            path=f"{out.name}/{lost[0]}",
            fix="porter sync --force (drops the edits)",
        )
    if foreign:
        raise EditedOutputError(
            f"{len(foreign)} file{'s' if len(foreign) > 1 else ''} that porter does not own stand{'' if len(foreign) > 1 else 's'} in the way: {', '.join(foreign[:5])}",
            path=f"{out.name}/{foreign[0]}",
            fix="move the file away, or porter sync --force (replaces it)",
        )


def _manifest_bytes(manifest: Manifest) -> bytes:
    return dumps({"inputs": manifest.inputs, "files": dict(sorted(manifest.files.items()))}).encode()


def _remove_empty(out: Path, folder: Path) -> None:
    while folder != out and folder.is_dir():
        leftovers = [child for child in folder.iterdir() if child.name not in _CACHES]
        if leftovers:
            return
        for cache in folder.iterdir():
            for file in cache.iterdir():
                file.unlink()
            cache.rmdir()
        folder.rmdir()
        folder = folder.parent


def write_atomic(path: Path, data: bytes) -> None:
    """Write through a temporary file in the same folder, synced to disk, then put it in place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _tree_error(name: str, error: OSError) -> TreeError:
    where = Path(error.filename).name if error.filename else name
    return TreeError(
        f"{name}/ cannot be written ({where}): {error.strerror}",
        fix="free space or mend the permissions, then run `porter sync` again",
    )
