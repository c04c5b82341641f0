"""What a run on the simulated device adds to a factory: what the device refuses or pays dearly for, and what its calls
would cost. Counts are of kernel calls at the sizes that ran; times are estimates and nowhere measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from porter.findings import Finding

COUNTS = (
    "operators", "fallbacks", "bytes_read", "bytes_written", "flops", "host_reads", "uploads", "bounces", "collectives",
    "collective_bytes", "launches", "compiled", "round_trips",
)  # fmt: skip


@dataclass(frozen=True)
class DeviceFinding:
    """One strict finding. ``code`` of porter.sim's table; ``path`` and ``line`` of the code that caused it, an override's
    where it was emitted from one. ``allowed``: a NEURON comment accepts it, or it is the caller's. ``times``: how often.
    """

    code: str
    operator: str
    path: str
    line: int
    function: str
    title: str
    detail: str
    rewrite: str
    allowed: bool
    compiled: bool
    times: int = 1

    @property
    def key(self) -> tuple[str, int, str, str, str, bool, bool]:
        """What two findings share when they are the same one."""
        return (self.path, self.line, self.code, self.operator, self.function, self.allowed, self.compiled)

    def render(self) -> str:
        """One line for a person."""
        place = f"{self.path}:{self.line}: " if self.path else ""
        detail = f" ({self.detail})" if self.detail else ""
        fix = f"; instead: {self.rewrite}" if self.rewrite and not self.allowed else ""
        return f"{place}{self.code} {self.operator}: {self.title}{detail}{fix}, {self.times} times"


def summed(findings: Iterable[DeviceFinding]) -> tuple[DeviceFinding, ...]:
    """The findings with equal ones added up, in order of place."""
    found: dict[tuple[Any, ...], DeviceFinding] = {}
    for one in findings:
        known = found.get(one.key)
        found[one.key] = one if known is None else replace(known, times=known.times + one.times)
    return tuple(found[key] for key in sorted(found))


@dataclass(frozen=True)
class DeviceUse:
    """Kernel calls of one factory, added up.

    ``counts``: by the names in ``COUNTS``, over all calls. ``estimated_us``: microseconds over all calls, an estimate.
    ``worst_us``, ``worst_operators``: of the call with the highest estimate. ``by_operator``: dispatches by operator.
    """

    calls: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    estimated_us: float = 0.0
    worst_us: float = 0.0
    worst_operators: int = 0
    by_operator: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[DeviceFinding, ...] = ()
    allowed: tuple[DeviceFinding, ...] = ()

    def a_call(self, name: str) -> float:
        """Mean of a count over the calls."""
        return self.counts.get(name, 0) / max(self.calls, 1)

    @property
    def bytes_a_call(self) -> float:
        """Bytes of device memory that a call reads and writes."""
        return self.a_call("bytes_read") + self.a_call("bytes_written")

    @property
    def estimated_us_a_call(self) -> float:
        """Mean estimate of a call, in microseconds."""
        return self.estimated_us / max(self.calls, 1)

    def plus(self, other: DeviceUse) -> DeviceUse:
        """Both together."""
        worse = other if other.worst_us > self.worst_us else self
        return DeviceUse(
            calls=self.calls + other.calls,
            counts={name: self.counts.get(name, 0) + other.counts.get(name, 0) for name in COUNTS},
            estimated_us=self.estimated_us + other.estimated_us,
            worst_us=worse.worst_us,
            worst_operators=worse.worst_operators,
            by_operator=dict(Counter(self.by_operator) + Counter(other.by_operator)),
            findings=summed((*self.findings, *other.findings)),
            allowed=summed((*self.allowed, *other.allowed)),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data: means a call, totals, findings."""
        ordered = sorted(self.by_operator.items(), key=lambda item: (-item[1], item[0]))
        return {
            "calls": self.calls,
            "operators_a_call": round(self.a_call("operators"), 2),
            "round_trips_a_call": round(self.a_call("round_trips"), 2),
            "bytes_a_call": round(self.bytes_a_call),
            "estimated_us_a_call": round(self.estimated_us_a_call, 1),
            "worst_us": round(self.worst_us, 1),
            "worst_operators": self.worst_operators,
            "totals": {**{name: self.counts.get(name, 0) for name in COUNTS}, "estimated_us": round(self.estimated_us, 1)},
            "by_operator": dict(ordered),
            "findings": [asdict(one) for one in self.findings],
            "allowed": [asdict(one) for one in self.allowed],
        }  # fmt: skip


def _finding(row: Mapping[str, Any]) -> DeviceFinding:
    return DeviceFinding(**{name: row[name] for name in DeviceFinding.__dataclass_fields__})


def use_from(row: Mapping[str, Any]) -> DeviceUse:
    """One factory's use in a case, as a test process recorded it: ``calls``, ``cost``, ``worst``, ``findings``, ``allowed``."""
    cost, worst = row["cost"], row["worst"]
    return DeviceUse(
        calls=row["calls"],
        counts={name: cost[name] for name in COUNTS},
        estimated_us=cost["estimated_us"],
        worst_us=worst["estimated_us"],
        worst_operators=worst["operators"],
        by_operator=cost["by_operator"],
        findings=summed(_finding(one) for one in row["findings"]),
        allowed=summed(_finding(one) for one in row["allowed"]),
    )


def strict_findings(uses: Mapping[str, DeviceUse]) -> Iterable[Finding]:
    """What the device would refuse or pay dearly for, one finding a line of code and code; factories that share a helper
    share its findings."""
    groups: dict[tuple[Any, ...], tuple[DeviceFinding, list[str]]] = {}
    for factory in sorted(uses):
        for one in uses[factory].findings:
            groups.setdefault(one.key, (one, []))[1].append(factory)
    for key in sorted(groups):
        one, factories = groups[key]
        detail = f" ({one.detail})" if one.detail else ""
        yield Finding(
            "PV015",
            f"{one.code} {one.operator}: {one.title}{detail}; in {', '.join(factories)}",
            symbol=factories[0],
            path=one.path,
            line=one.line or None,
            fix=one.rewrite,
        )
