"""The user's cache of archives and unpacked sources.

Layout, below the root:

- ``archives/<distribution>/<version>/<sha256>/<filename>``: what was downloaded, named by what it holds;
- ``unpacked/<distribution>-<version>-<sha256, 16 digits>-<rules>/``: what was unpacked of it, ``tree/`` and a marker;
- ``locks/``: one lock a thing being made, let go by the system when a process dies.

Everything appears by one rename once it is whole, so a process killed at any moment leaves nothing half done in sight.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_path

from porter.errors import SourceError
from porter.sources.progress import Progress

CACHE_VARIABLE = "PORTER_CACHE_DIR"
# Seconds to wait for another porter that fetches or unpacks the same source.
_PATIENCE = 1800.0
_CHUNK = 1 << 20


def default_cache(environ: Mapping[str, str] | None = None) -> Path:
    """``PORTER_CACHE_DIR`` if set, else the user's cache folder for porter."""
    environ = os.environ if environ is None else environ
    named = environ.get(CACHE_VARIABLE)
    return Path(named).expanduser().absolute() if named else user_cache_path("porter", appauthor=False)


@dataclass(frozen=True)
class Cache:
    """Paths inside the cache, and its locks."""

    root: Path

    def archives(self, distribution: str, version: str) -> Path:
        """Folder of a distribution's archives, one folder a sha256."""
        return self.root / "archives" / distribution / version

    def archive(self, distribution: str, version: str, sha256: str, filename: str) -> Path:
        """Where an archive of that digest lies."""
        return self.archives(distribution, version) / sha256 / filename

    def unpacked(self, distribution: str, version: str, sha256: str, rules: str) -> Path:
        """Where that archive is unpacked under rules of that digest."""
        return self.root / "unpacked" / f"{distribution}-{version}-{sha256[:16]}-{rules}"

    @contextmanager
    def hold(self, key: str, progress: Progress) -> Iterator[None]:
        """Be the only process that makes ``key``; wait for another one that does.

        Raises:
            SourceError: the cache cannot be written, or the other process does not finish.
        """
        # filelock brings asyncio with it, and a warm run locks nothing.
        from filelock import FileLock, Timeout

        path = self.root / "locks" / f"{key}.lock"
        with cache_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(path)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                with progress.task(f"waiting for another porter to finish {key}"):
                    try:
                        lock.acquire(timeout=_PATIENCE)
                    except Timeout as error:
                        raise SourceError(
                            f"another porter has been at work on {key} for {_PATIENCE:.0f} s",
                            path=str(path),
                            fix="end the other porter, then run the command again",
                        ) from error
        try:
            yield
        finally:
            lock.release()


@contextmanager
def cache_errors(path: Path) -> Iterator[None]:
    """Turn a failure of the file system into an error that says what to do.

    Raises:
        SourceError: no space, no permission, not a folder.
    """
    try:
        yield
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else str(path)
        why = error.strerror or str(error)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        mend = "free some space" if full else "correct the permissions"
        raise SourceError(
            f"the cache cannot be used: {why}", path=where, fix=f"{mend}, or set {CACHE_VARIABLE} to a folder with room"
        ) from error


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
