"""``record()``: the strict findings and the cost of a block of code on the simulated device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from porter.sim.compile import REPORT
from porter.sim.costs import Cost, Meter
from porter.sim.operators import read_operators
from porter.sim.rates import Rates
from porter.sim.strict import Finding, Mode, Strict, given_of, roots_of
from porter.sim.watchers import WATCHERS


@dataclass
class Recording:
    """What happened in the block, complete when it is left. ``graphs``, ``breaks``, ``recompiles`` as Dynamo made them in it."""

    name: str
    strict: Strict
    meter: Meter
    graphs: int = 0
    breaks: int = 0
    recompiles: int = 0

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Strict findings that no comment allows."""
        return self.strict.findings

    @property
    def allowed(self) -> tuple[Finding, ...]:
        """Those that a ``# NEURON:`` comment allows."""
        return self.strict.allowed

    @property
    def cost(self) -> Cost:
        """Counts and the estimate."""
        return self.meter.cost

    def times(self, finding: Finding) -> int:
        """How often a finding was met."""
        return self.strict.found[finding]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "name": self.name,
            "mode": str(self.strict.mode),
            "findings": [{**one.to_dict(), "times": self.times(one)} for one in self.findings],
            "allowed": [{**one.to_dict(), "times": self.times(one)} for one in self.allowed],
            "outside": self.strict.outside,
            "cost": self.cost.to_dict(),
            "compile": {"graphs": self.graphs, "graph_breaks": self.breaks, "recompiles": self.recompiles},
        }

    def render(self) -> str:
        """A few lines for a person."""
        lines = [f"{self.name or 'recording'}: {self.cost.render()}"]
        lines += [f"  {one.render()}" for one in self.findings]
        lines += [f"  allowed: {one.render()}" for one in self.allowed]
        return "\n".join(lines)


@contextmanager
def record(
    name: str = "",
    *,
    strict: str | Mode = Mode.RECORD,
    roots: Sequence[str | Path] = (),
    arguments: Iterable[object] = (),
    operators: Path | None = None,
    rates: Rates | None = None,
) -> Iterator[Recording]:
    """Look at a block of code.

    Args:
        name: of the block, for its report.
        strict: ``off``, ``record`` or ``raise``.
        roots: folders or files; only what happens in code under them is a finding. Costs count everything.
        arguments: what the caller passes in; strided writes that its own strides cause are the caller's.
        operators: a list of operators with a device kernel, in place of the built-in one.
        rates: in place of the built-in table.

    Raises:
        StrictError: in mode ``raise``, at the first finding that no comment allows.
        SimError: the list of operators cannot be read.
        ValueError: an unknown mode.
    """
    listed = read_operators(operators)
    watching = Strict(Mode(strict), roots_of(roots), listed, given_of(arguments))
    meter = Meter(rates or Rates(), listed)
    recording = Recording(name, watching, meter)
    before = REPORT.known()
    WATCHERS.extend((watching, meter))
    try:
        yield recording
    finally:
        # By identity: two recordings may be equal.
        WATCHERS[:] = [one for one in WATCHERS if one is not watching and one is not meter]
        after = REPORT.known()
        recording.graphs, recording.breaks, recording.recompiles = (
            new - old for new, old in zip(after, before, strict=True)
        )
