"""NEURON_PORT.md: the port described from the same plan that emitted it."""

from __future__ import annotations

from collections.abc import Iterable

from porter.config import VENDOR_PACKAGES
from porter.overrides import BACKEND_SURFACE
from porter.plan import Entry, Plan, State, counts
from porter.render.text import render_template


def render(plan: Plan) -> str:
    """Text of the guide."""
    factories = [entry for module in plan.modules if module.package == BACKEND_SURFACE for entry in module.entries]
    packages = []
    for package in VENDOR_PACKAGES:
        entries = [entry for module in plan.modules if module.package == package for entry in module.entries]
        if entries:
            source = plan.lock.source(package)
            packages.append({"name": package, "version": source.version if source else "", **counts(entries)})
    engine = plan.lock.source("deepinfer")
    return render_template(
        "NEURON_PORT.md.j2",
        {
            "engine": engine.version if engine else "",
            "sources": sorted(plan.lock.sources, key=lambda s: s.name),
            "totals": counts(factories),
            "implemented": _rows(factories, State.IMPLEMENTED),
            "excluded": _rows(factories, State.EXCLUDED),
            "pending": _rows(factories, State.PENDING, State.UNCLASSIFIED),
            "features": list(plan.config.features),
            "packages": packages,
            "overrides": plan.config.overrides,
        },
        target="NEURON_PORT.md",
    )


def _rows(entries: Iterable[Entry], *states: State) -> list[dict[str, str]]:
    return [
        {
            "name": entry.symbol.qualname,
            "module": entry.symbol.module.rpartition(".")[2],
            "feature": entry.feature,
            "reason": entry.reason,
        }
        for entry in sorted(entries, key=lambda e: e.symbol.id)
        if entry.state in states
    ]
