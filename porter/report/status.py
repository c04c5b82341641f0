"""Where every name stands, as a table and as JSON."""

from __future__ import annotations

import json

from porter.codec import Json
from porter.config import VENDOR_PACKAGES
from porter.overrides import BACKEND_SURFACE
from porter.plan import Entry, Freshness, Plan, counts

_COLUMNS = ("total", "implemented", "excluded", "pending", "stale")


def totals(plan: Plan) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """Counts of the factories and of each vendor package."""
    groups: dict[str, list[Entry]] = {BACKEND_SURFACE: [], **{package: [] for package in VENDOR_PACKAGES}}
    for module in plan.modules:
        groups[module.package].extend(module.entries)
    factories = counts(groups.pop(BACKEND_SURFACE))
    return factories, {package: counts(entries) for package, entries in groups.items()}


def text(plan: Plan, *, names: bool = False) -> str:
    """A table of counts; with ``names`` a row for every factory and every name that the engine uses."""
    factories, vendor = totals(plan)
    rows = [("", *_COLUMNS), ("factories", *(str(factories[c]) for c in _COLUMNS))]
    rows += [(package, *(str(row[c]) for c in _COLUMNS)) for package, row in vendor.items()]
    lines = _table(rows)
    engine = engine_entries(plan)
    done = sum(entry.state == "implemented" for entry in engine.values() if entry is not None)
    lines.append(f"names that the engine uses: {done} of {len(engine)} implemented")
    if names:
        lines.append("")
        lines += _table([("name", "state", "by", "override"), *_name_rows(plan)])
    return "\n".join(lines) + "\n"


def _name_rows(plan: Plan) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for module in plan.modules:
        for entry in module.entries:
            if module.package == BACKEND_SURFACE and not entry.is_member:
                rows.append(
                    (entry.symbol.qualname, str(entry.state), entry.feature or str(entry.origin), str(entry.freshness))
                )
    for name, found in sorted(engine_entries(plan).items()):
        row = (
            (name, "missing", "", "")
            if found is None
            else (name, str(found.state), found.feature or str(found.origin), str(found.freshness))
        )
        rows.append(row)
    return rows


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            (
                cell.ljust(width)
                if index == 0
                else (
                    cell.rjust(width)
                    if cell.isdigit() or (index and row is rows[0] and len(rows[0]) > 4)
                    else cell.ljust(width)
                )
            )
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def engine_entries(plan: Plan) -> dict[str, Entry | None]:
    """Plan entries of the vendor names that the engine uses; None for a name that upstream's package does not have.

    Modules are left out: they are only the way to the names in them.
    """
    modules = {module.module.name for module in plan.modules}
    return {
        name: plan.by_id.get(plan.lock.paths.get(name, "")) for name in plan.lock.engine_names if name not in modules
    }


def as_json(plan: Plan) -> str:
    """``{"factories": {"total", ...}, "vendor": {package: the same}, "engine": {name: state}, "names": {...}}``."""
    factories, vendor = totals(plan)
    engine: dict[str, Json] = {
        name: str(entry.state) if entry else "missing" for name, entry in sorted(engine_entries(plan).items())
    }
    stale: list[Json] = [
        entry.symbol.id
        for entry in plan.entries
        if entry.freshness not in (Freshness.FRESH, Freshness.NONE) and not entry.is_member
    ]
    states: dict[str, Json] = {
        entry.symbol.id: str(entry.state)
        for module in plan.modules
        if module.package == BACKEND_SURFACE
        for entry in module.entries
    }
    data: dict[str, Json] = {
        "version": 1,
        "factories": dict(factories),
        "vendor": {package: dict(row) for package, row in vendor.items()},
        "engine": engine,
        "factory_states": states,
        "stale": stale,
    }
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"
