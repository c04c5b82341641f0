"""A journal of named calls: findings and costs summed by name, for a tool that calls many kernels many times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from porter.sim.costs import ESTIMATE, Cost
from porter.sim.rates import Rates
from porter.sim.recording import record
from porter.sim.strict import Finding, Mode


@dataclass
class Entry:
    """All calls of one name. ``worst``: the call with the highest estimate. ``findings``, ``allowed``: finding to how often."""

    name: str
    calls: int = 0
    cost: Cost = field(default_factory=Cost)
    worst: Cost = field(default_factory=Cost)
    findings: dict[Finding, int] = field(default_factory=dict)
    allowed: dict[Finding, int] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Plain data that can be added up: sums, the worst call, the findings."""
        return {
            "calls": self.calls,
            "cost": self.cost.to_dict(),
            "worst": self.worst.to_dict(),
            "findings": [{**one.to_dict(), "times": times} for one, times in self.findings.items()],
            "allowed": [{**one.to_dict(), "times": times} for one, times in self.allowed.items()],
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain data: counts and the estimate a call, the worst call, the findings."""
        calls = max(self.calls, 1)
        return {
            "name": self.name,
            "calls": self.calls,
            "operators_a_call": round(self.cost.operators / calls, 2),
            "round_trips_a_call": round(self.cost.round_trips / calls, 2),
            "bytes_a_call": (self.cost.bytes_read + self.cost.bytes_written) // calls,
            "estimated_us_a_call": round(self.cost.estimated_us / calls, 1),
            **{name: value for name, value in self.record().items() if name not in ("calls", "cost")},
            "basis": ESTIMATE,
        }


@dataclass
class Journal:
    """Entries by name. The settings are those of ``record``."""

    strict: str | Mode = Mode.RECORD
    roots: Sequence[str | Path] = ()
    operators: Path | None = None
    rates: Rates | None = None
    entries: dict[str, Entry] = field(default_factory=dict)

    @contextmanager
    def call(self, name: str, arguments: Iterable[object] = ()) -> Iterator[None]:
        """One call of ``name`` with ``arguments``; counted when it ends, also when it raises.

        Raises:
            StrictError: in mode ``raise``.
        """
        entry = self.entries.setdefault(name, Entry(name))
        with record(
            name, strict=self.strict, roots=self.roots, arguments=arguments, operators=self.operators, rates=self.rates
        ) as recording:
            try:
                yield
            finally:
                entry.calls += 1
                entry.cost += recording.cost
                if recording.cost.estimated_us >= entry.worst.estimated_us:
                    entry.worst = recording.cost
                for finding, times in recording.strict.found.items():
                    kept = entry.allowed if finding.allowed else entry.findings
                    kept[finding] = kept.get(finding, 0) + times

    def to_dict(self) -> dict[str, Any]:
        """Plain data, by name."""
        return {name: self.entries[name].to_dict() for name in sorted(self.entries)}

    def render(self) -> str:
        """A table for a person, and the findings below it."""
        head = f"{'name':40} {'calls':>6} {'ops':>8} {'trips':>6} {'est. us':>9}  findings"
        rows = [head, "-" * len(head)]
        for name in sorted(self.entries):
            data = self.entries[name].to_dict()
            codes = ", ".join(sorted({one["code"] for one in data["findings"]})) or "."
            rows.append(
                f"{name:40} {data['calls']:6} {data['operators_a_call']:8} {data['round_trips_a_call']:6} "
                f"{data['estimated_us_a_call']:9}  {codes}"
            )
        rows.append(f"per call; times: {ESTIMATE}")
        for name in sorted(self.entries):
            entry = self.entries[name]
            rows += [f"{name}: {one.render()} x{times}" for one, times in entry.findings.items()]
            rows += [f"{name}: allowed: {one.render()} x{times}" for one, times in entry.allowed.items()]
        return "\n".join(rows)
