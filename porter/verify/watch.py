"""Strict findings and costs of kernel calls, in a test process on the simulated device.

Imports the simulation, so only a process that runs on it may import this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from porter import sim
from porter.sim.operators import read_operators
from porter.verify.origins import Origins


class DeviceWatch:
    """Records kernel calls case by case. ``roots``: the folders whose code is judged; ``origins``: where it comes from."""

    def __init__(
        self, roots: Sequence[Path], origins: Origins, operators: Path | None = None, rates: Path | None = None
    ) -> None:
        self._roots = [str(root) for root in roots]
        self._origins = origins
        self._operators = operators
        self._rates = sim.Rates() if rates is None else sim.read_rates(rates)
        read_operators(operators)
        self._journal = self._fresh()

    def _fresh(self) -> sim.Journal:
        return sim.Journal(roots=self._roots, operators=self._operators, rates=self._rates)

    def call(self, factory: str, arguments: Iterable[object]) -> AbstractContextManager[None]:
        """Around one kernel call."""
        return self._journal.call(factory, arguments)

    def take(self) -> dict[str, Any]:
        """What was recorded since the last time, by factory."""
        done, self._journal = self._journal, self._fresh()
        rows = {name: done.entries[name].record() for name in sorted(done.entries)}
        for row in rows.values():
            for finding in (*row["findings"], *row["allowed"]):
                finding["path"], finding["line"] = self._origins.place(finding["path"], finding["line"])
        return rows

    def describe(self) -> dict[str, Any]:
        """What the estimates stand on."""
        rates = {one.name: {"value": getattr(self._rates, one.name), "unit": one.unit} for one in sim.TABLE}
        listed = "porter's own" if self._operators is None else self._operators.name
        return {"estimate": sim.ESTIMATE, "rates": rates, "operators": listed}
