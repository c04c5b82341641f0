"""`porter diff` and `porter check --upstream`: a named upstream against the lock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from porter.config import ENGINE, SOURCE_NAMES, Config
from porter.drift import Change, compare
from porter.findings import Finding
from porter.lock import read_lock
from porter.sources.progress import Progress
from porter.upstream import Request, read_upstream


def upstream_changes(
    config: Config, request: Request, *, cache: Path | None = None, progress: Progress | None = None
) -> tuple[Change, ...]:
    """What the upstream of a request changed against the lock, over the sources that the request names (all when none).

    Raises:
        LockError, SourceError, UnreadableUpstreamError.
    """
    lock = read_lock(config.lock_path)
    if request.overridden:
        named = (*((ENGINE,) if request.upstream is not None else ()), *request.vendor)
        request = replace(request, only=tuple(name for name in SOURCE_NAMES if name in named))
    new = read_upstream(config, request, lock, cache=cache, progress=progress).lock
    wanted = {surface.source for surface in new.surfaces}
    return compare([surface for surface in lock.surfaces if surface.source in wanted], new.surfaces)


def upstream_findings(
    config: Config, request: Request, *, cache: Path | None = None, progress: Progress | None = None
) -> Iterator[Finding]:
    """Drift of a named upstream as findings, and the seams that would not fit its checkout."""
    for change in upstream_changes(config, request, cache=cache, progress=progress):
        kinds = ", ".join(str(kind) for kind in (change.kind, *change.also))
        yield Finding(
            "PT040",
            f"{change.symbol}: {kinds}",
            symbol=change.symbol,
            path=change.file,
            line=change.line,
            expected=(change.old.signature or f"body {change.old.body}") if change.old else "no such name",
            found=(change.new.signature or f"body {change.new.body}") if change.new else "no such name",
            fix="porter sync --upstream PATH, then review the overrides concerned",
        )
    if request.upstream is not None and (request.upstream / "setup.py").is_file():
        from porter.seams import api

        yield from api.check(request.upstream)
