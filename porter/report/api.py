"""``porter report``: the project's state and its measurements, gathered into one page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from porter.check import check
from porter.config import Config
from porter.drift import Change, compare
from porter.errors import SourceError
from porter.lock import Lock, read_lock
from porter.overrides import load_overrides
from porter.plan import make_plan
from porter.report.page import Page, make_page
from porter.report.results import read_all
from porter.sources.progress import Progress
from porter.upstream import Request, read_upstream


def gather(
    config: Config, results: Sequence[Path] = (), request: Request | None = None, *, progress: Progress | None = None
) -> Page:
    """The page of a project.

    Args:
        results: files of ``porter verify --json``, one on a torch device and one on the simulated one at most.
        request: the upstream whose lines are shown and which is compared with the lock; porter.toml's by default.

    Raises:
        ReportError: results that cannot be read. PorterError: see ``porter check`` and ``porter diff``; a pinned source that
            cannot be had is no error, the page says so.
    """
    tests, device = read_all(results)
    lock = read_lock(config.lock_path)
    plan = make_plan(config, lock, load_overrides(config.overrides_path))
    lines, changes, compared = _upstream(config, request or Request(), lock, progress)
    return make_page(
        plan,
        folders=(config.out_path.name, config.overrides_path.name),
        lines=lines,
        check=check(config).findings,
        changes=changes,
        compared=compared,
        tests=tests,
        device=device,
    )


def _upstream(
    config: Config, request: Request, lock: Lock, progress: Progress | None
) -> tuple[Mapping[str, int], tuple[Change, ...] | None, str]:
    """Lines by symbol, changes against the lock, and what was compared, or why nothing was."""
    try:
        new = read_upstream(config, request, lock, progress=progress).lock
    except SourceError as error:
        if request.overridden:
            raise
        return {}, None, error.message
    given = (*(("deepinfer",) if request.upstream is not None else ()), *sorted(request.vendor))
    compared = f"{', '.join(given)} as given" if given else "the releases that porter.toml pins"
    lines = {symbol.id: symbol.line for surface in new.surfaces for symbol in surface.symbols}
    return lines, tuple(compare(lock.surfaces, new.surfaces)), compared
