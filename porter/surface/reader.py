"""Facts of a whole tree of files: from the cache where they are known, else read by several processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from porter.errors import UnreadableFileError, UnreadableUpstreamError
from porter.surface.cache import FactsCache, decode, encode, file_digest
from porter.surface.model import ModuleFacts

# Below this many bytes a second process costs more than it saves.
_WORTH_A_PROCESS = 400_000
# Files handed to a worker at once: about this many bytes.
_BATCH = 120_000

Progress = Callable[[int, int], None]
type _Item = tuple[str, bytes]
# (path, encoded facts) of a file that was read, or (path, line, message) of one that was not.
type _Result = tuple[str, bytes] | tuple[str, int | None, str]
type _Work = Callable[[Sequence[_Item]], list[_Result]]


def read_tree(
    root: Path,
    files: Iterable[Path],
    *,
    jobs: int | None = None,
    progress: Progress | None = None,
    cache: FactsCache | None = None,
) -> dict[str, ModuleFacts]:
    """Facts by path relative to ``root`` (posix), sorted by path.

    Parameters:
        root: folder that paths are relative to.
        files: files below ``root`` (absolute, or relative to it).
        jobs: processes to use; None for as many as there are processors.
        progress: called with (files done, files in all), the first time before anything is read.
        cache: an open cache to use; None to open the user's.

    Raises:
        UnreadableUpstreamError: some files cannot be read; it lists every one of them.
    """
    if cache is None:
        with FactsCache() as opened:
            return read_tree(root, files, jobs=jobs, progress=progress, cache=opened)
    contents: dict[str, bytes] = {}
    errors: dict[str, UnreadableFileError] = {}
    for file in files:
        path = file if file.is_absolute() else root / file
        name = path.relative_to(root).as_posix()
        try:
            contents[name] = path.read_bytes()
        except OSError as error:
            errors[name] = UnreadableFileError(f"cannot be opened: {error.strerror}", path=name)
    digests = {name: file_digest(data) for name, data in contents.items()}
    known = cache.get(digests.values())
    facts = {name: known[digest] for name, digest in digests.items() if digest in known}
    missing = [(name, contents[name]) for name in sorted(contents) if name not in facts]
    total, done = len(contents) + len(errors), len(facts) + len(errors)
    if progress is not None:
        progress(done, total)
    fresh: dict[str, bytes] = {}
    for result in _read(missing, jobs):
        if len(result) == 2:
            name, encoded = result
            facts[name] = decode(encoded)
            fresh[digests[name]] = encoded
        else:
            errors[result[0]] = UnreadableFileError(result[2], path=result[0], line=result[1])
        done += 1
        if progress is not None:
            progress(done, total)
    cache.put(fresh)
    if errors:
        raise UnreadableUpstreamError([errors[name] for name in sorted(errors)])
    return {name: facts[name] for name in sorted(facts)}


def python_files(folder: Path) -> tuple[Path, ...]:
    """Every ``.py`` file below ``folder`` that can be a module of it: each part of its path is an identifier. Sorted."""
    found = []
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).with_suffix("").parts
        if all(part.isidentifier() for part in parts):
            found.append(path)
    return tuple(sorted(found))


def _read(items: Sequence[_Item], jobs: int | None, work: _Work | None = None) -> Iterator[_Result]:
    work = work or _read_batch
    count = jobs if jobs is not None else _processors()
    if count < 2 or sum(len(data) for _, data in items) < _WORTH_A_PROCESS:
        yield from work(items)
        return
    batches = _batches(items)
    with _pool(min(count, len(batches))) as pool:
        futures = [pool.submit(work, batch) for batch in batches]
        lost: list[list[_Item]] = []
        try:
            for future, batch in zip(futures, batches, strict=True):
                try:
                    yield from future.result()
                except BrokenProcessPool:
                    lost.append(batch)
        finally:
            for future in futures:
                future.cancel()
    for batch in lost:
        yield from _read_apart(batch, work)


def _read_apart(items: Sequence[_Item], work: _Work) -> Iterator[_Result]:
    """Read in a process of their own files among which one ended the process that read them, to find which it is."""
    try:
        with _pool(1) as pool:
            yield from pool.submit(work, items).result()
    except BrokenProcessPool:
        if len(items) == 1:
            yield items[0][0], None, "ended the process that read it: nested too deeply, or not enough memory"
            return
        middle = len(items) // 2
        yield from _read_apart(items[:middle], work)
        yield from _read_apart(items[middle:], work)


def _pool(count: int) -> ProcessPoolExecutor:
    # spawn: the caller may run threads, and every platform has it.
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _batches(items: Sequence[_Item]) -> list[list[_Item]]:
    """Items in groups of about equal weight, big files first so that no worker is left with one at the end."""
    batches: list[list[_Item]] = []
    size = _BATCH
    for item in sorted(items, key=lambda one: (-len(one[1]), one[0])):
        if size + len(item[1]) > _BATCH:
            batches.append([])
            size = 0
        batches[-1].append(item)
        size += len(item[1])
    return batches


def _read_batch(items: Sequence[_Item]) -> list[_Result]:
    from porter.surface.python import extract  # libcst costs a tenth of a second: not for a warm run

    results: list[_Result] = []
    collecting = gc.isenabled()
    gc.disable()  # trees hold no cycles; looking for some costs a tenth of the time
    try:
        for name, data in items:
            try:
                results.append((name, encode(extract(name, data))))
            except UnreadableFileError as error:
                results.append((name, error.line, error.message))
    finally:
        if collecting:
            gc.enable()
    return results
