"""black over many texts: what was formatted before comes from the cache, the rest is shared among processes."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from porter.errors import RenderError
from porter.lock import black_version

LINE_LENGTH = 120
_FILE = "formatted.sqlite3"
# Fewer texts than this are formatted faster than a process starts.
_WORTH_A_PROCESS = 48


def format_python(text: str, *, target: str) -> str:
    """Format one text.

    Raises:
        RenderError: the text is not Python; ``target`` is the file that it was for.
    """
    import black
    from black.mode import TargetVersion
    from black.parsing import InvalidInput

    mode = black.Mode(line_length=LINE_LENGTH, target_versions={TargetVersion.PY312})
    try:
        return black.format_str(text, mode=mode)
    except InvalidInput as error:
        raise RenderError(
            f"is not valid Python: {error}", path=target, fix="report this: porter or a template is wrong"
        ) from error


def format_all(texts: Mapping[str, str], *, folder: Path | None = None) -> dict[str, str]:
    """Formatted text by path.

    Parameters:
        texts: text by path.
        folder: the cache's folder; None for the user's.

    Raises:
        RenderError: one of them is not Python.
    """
    keys = {path: _key(text) for path, text in texts.items()}
    with contextlib.closing(_open(folder)) as cache:
        known = _get(cache, keys.values())
        missing = sorted(path for path, key in keys.items() if key not in known)
        fresh = dict(zip(missing, _format([(path, texts[path]) for path in missing]), strict=True))
        _put(cache, {keys[path]: text for path, text in fresh.items()})
    return {path: fresh[path] if path in fresh else known[keys[path]] for path in texts}


def _format(items: Sequence[tuple[str, str]]) -> list[str]:
    count = min(os.cpu_count() or 1, len(items) // _WORTH_A_PROCESS + 1)
    if count < 2:
        return [_one(item) for item in items]
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(_one, items, chunksize=16))


def _one(item: tuple[str, str]) -> str:
    path, text = item
    return format_python(text, target=path)


def _key(text: str) -> str:
    return hashlib.sha256(f"{black_version()}\n{LINE_LENGTH}\n{text}".encode()).hexdigest()


def _open(folder: Path | None) -> sqlite3.Connection:
    """The cache; one in memory where the file cannot be had, since a cache only saves time."""
    from porter.sources.cache import default_cache

    path = (folder or default_cache()) / _FILE
    with contextlib.suppress(sqlite3.Error, OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        return _prepared(sqlite3.connect(path, timeout=10, isolation_level=None))
    return _prepared(sqlite3.connect(":memory:", isolation_level=None))


def _prepared(connection: sqlite3.Connection) -> sqlite3.Connection:
    try:
        connection.execute("CREATE TABLE IF NOT EXISTS texts (key TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID")
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _get(cache: sqlite3.Connection, keys: Iterable[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    with contextlib.suppress(sqlite3.Error):
        for key in sorted(set(keys)):
            row = cache.execute("SELECT text FROM texts WHERE key = ?", (key,)).fetchone()
            if row is not None and isinstance(row[0], str):
                found[key] = row[0]
    return found


def _put(cache: sqlite3.Connection, texts: Mapping[str, str]) -> None:
    with contextlib.suppress(sqlite3.Error):
        cache.execute("BEGIN IMMEDIATE")
        cache.executemany("INSERT OR REPLACE INTO texts VALUES (?, ?)", sorted(texts.items()))
        cache.execute("COMMIT")
