"""Everything the HTML page says, as data: a row a name, the runs, the findings, the drift. Pure, and in a fixed order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from porter.config import VENDOR_PACKAGES
from porter.drift import Change
from porter.findings import Finding
from porter.overrides import BACKEND_SURFACE
from porter.plan import EmittedModule, Entry, Freshness, Plan
from porter.report.results import Device, Results, Tests
from porter.report.status import engine_entries, totals

FACTORIES = "factories"


@dataclass(frozen=True)
class NameRow:
    """One upstream name. ``group``: ``factories`` or the vendor package. ``used``: the engine uses it (all factories).

    ``state``: implemented, excluded, pending, unclassified or missing; ``stale``: its override is not held to today's body.
    ``by``: what implements or excludes it; ``reason``: why not. ``upstream``: file and line in its source. ``emitted``,
    ``override``: files of this project. ``tests``, ``device``: None where nothing was measured.
    """

    name: str
    group: str
    used: bool
    state: str
    stale: bool
    by: str
    reason: str
    source: str
    upstream: str
    emitted: str
    override: str
    tests: Tests | None = None
    device: Device | None = None


@dataclass(frozen=True)
class Page:
    """The page. ``totals``: a row a group. ``sources``: name, version, digest. ``check``: findings of the emitted tree.

    ``changes``: what ``compared`` changed against the lock; None when nothing was, and ``compared`` says why. ``tests``, ``device``: the runs, None when not given.
    """

    rows: tuple[NameRow, ...]
    totals: tuple[tuple[str, dict[str, int]], ...]
    sources: tuple[tuple[str, str, str], ...]
    used: tuple[int, int]
    check: tuple[Finding, ...]
    changes: tuple[Change, ...] | None
    compared: str
    tests: Results | None
    device: Results | None

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups with rows, in order."""
        return tuple(dict.fromkeys(row.group for row in self.rows))


_STALE = (Freshness.STALE, Freshness.MISMATCHED, Freshness.UNPINNED)


def _row(
    entry: Entry,
    module: EmittedModule,
    used: bool,
    folders: tuple[str, str],
    line: int,
    tests: Results | None,
    device: Results | None,
) -> NameRow:
    symbol, factories = entry.symbol, module.package == BACKEND_SURFACE
    name = symbol.qualname if factories else symbol.id
    return NameRow(
        name=name,
        group=FACTORIES if factories else module.package,
        used=used or factories,
        state=str(entry.state),
        stale=entry.freshness in _STALE,
        by=entry.feature or str(entry.origin),
        reason=entry.reason,
        source=symbol.source,
        upstream=f"{symbol.path}:{line}" if line else symbol.path,
        emitted=f"{folders[0]}/{module.path}",
        override=f"{folders[1]}/{entry.override}" if entry.override else "",
        tests=tests.tests.get(name) if tests is not None and factories else None,
        device=device.costs.get(name) if device is not None and factories else None,
    )


def make_page(
    plan: Plan,
    *,
    folders: tuple[str, str],
    lines: Mapping[str, int],
    check: Sequence[Finding] = (),
    changes: Sequence[Change] | None = None,
    compared: str = "",
    tests: Results | None = None,
    device: Results | None = None,
) -> Page:
    """The page of a plan.

    Args:
        folders: names of the output folder and of the overrides.
        lines: line of each symbol in upstream's file, by id; a lock holds none.
        check: findings of ``porter check``.
        changes, compared: see ``Page``.
        tests: the run whose test counts are shown; without one, those of ``device``.
        device: the run on the simulated device.
    """
    engine = engine_entries(plan)
    used = {entry.symbol.id for entry in engine.values() if entry is not None}
    shown = tests or device
    rows = [
        _row(entry, module, entry.symbol.id in used, folders, lines.get(entry.symbol.id, 0), shown, device)
        for module in plan.modules
        for entry in module.entries
    ]
    for name, entry in engine.items():
        if entry is None:
            package = name.partition(".")[0]
            rows.append(
                NameRow(name, package, True, "missing", False, "", "upstream has no such name", package, "", "", "")
            )
    order = {group: at for at, group in enumerate((FACTORIES, *VENDOR_PACKAGES))}
    rows.sort(key=lambda row: (order.get(row.group, len(order)), row.name, row.upstream))
    factories, vendor = totals(plan)
    done = sum(entry is not None and entry.state == "implemented" for entry in engine.values())
    return Page(
        rows=tuple(rows),
        totals=((FACTORIES, factories), *vendor.items()),
        sources=tuple((one.name, one.version, one.sha256[:16]) for one in plan.lock.sources),
        used=(done, len(engine)),
        check=tuple(check),
        changes=None if changes is None else tuple(changes),
        compared=compared,
        tests=tests,
        device=device,
    )
