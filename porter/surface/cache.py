"""Facts that were read before, kept by the digest of the file they came from.

One SQLite file in the user's cache folder, safe for several porters at once. It is only ever a shortcut: an entry that
cannot be read counts as absent, and a cache that cannot be opened or written is done without.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import zlib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType

import msgspec

from porter import __version__
from porter.sources.cache import default_cache
from porter.surface.model import ModuleFacts

_FILE = "facts.sqlite3"
_BUSY_SECONDS = 10.0
# SQLite takes at most this many parameters a statement on any build.
_CHUNK = 500
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(ModuleFacts)


def file_digest(data: bytes) -> str:
    """sha256 of a file's bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


@cache
def reader_version() -> str:
    """Changes whenever the same bytes might give other facts: with porter, its readers' own text, or libcst."""
    state = hashlib.sha256(__version__.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        state.update(path.read_bytes())
    with contextlib.suppress(PackageNotFoundError):
        state.update(version("libcst").encode())
    return state.hexdigest()[:16]


def encode(facts: ModuleFacts) -> bytes:
    """Facts as JSON bytes."""
    return _ENCODER.encode(facts)


def decode(data: bytes) -> ModuleFacts:
    """Facts that ``encode`` wrote.

    Raises:
        msgspec.DecodeError: ``data`` is something else.
    """
    return _DECODER.decode(data)


class FactsCache:
    """Encoded facts by file digest. Use as a context manager.

    Parameters:
        folder: where the cache file lives; made when missing.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.path = (folder if folder is not None else default_cache()) / _FILE
        self._connection: sqlite3.Connection | None = None

    def __enter__(self) -> FactsCache:
        self._connection = self._open() or self._renew()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> sqlite3.Connection | None:
        connection = None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, isolation_level=None)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS facts (digest TEXT NOT NULL, reader TEXT NOT NULL, value BLOB NOT NULL,"
                " PRIMARY KEY (digest, reader)) WITHOUT ROWID"
            )
        except (sqlite3.Error, OSError):
            if connection is not None:
                connection.close()
            return None
        return connection

    def _renew(self) -> sqlite3.Connection | None:
        """Replace a file that is no database (or has another layout); give up when that is not allowed."""
        try:
            for suffix in ("", "-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        except OSError:
            return None
        return self._open()

    def get(self, digests: Iterable[str]) -> dict[str, ModuleFacts]:
        """Facts of those files that are known, by digest. An entry that does not decode is left out."""
        found: dict[str, ModuleFacts] = {}
        if self._connection is None:
            return found
        wanted = sorted(set(digests))
        try:
            for start in range(0, len(wanted), _CHUNK):
                chunk = wanted[start : start + _CHUNK]
                marks = ",".join("?" * len(chunk))
                rows = self._connection.execute(
                    f"SELECT digest, value FROM facts WHERE reader = ? AND digest IN ({marks})",
                    (reader_version(), *chunk),
                )
                for digest, value in rows:
                    with contextlib.suppress(msgspec.DecodeError, zlib.error, TypeError):
                        found[digest] = decode(zlib.decompress(value))
        except sqlite3.Error:
            return found
        return found

    def put(self, entries: Mapping[str, bytes]) -> None:
        """Keep encoded facts by digest, and drop what other readers left behind."""
        if self._connection is None or not entries:
            return
        rows = [(digest, reader_version(), zlib.compress(value, 1)) for digest, value in sorted(entries.items())]
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._connection.execute("DELETE FROM facts WHERE reader != ?", (reader_version(),))
                self._connection.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", rows)
                self._connection.execute("COMMIT")
            except sqlite3.Error:
                self._connection.execute("ROLLBACK")
                raise
