"""What ``porter verify --json`` wrote, as the page shows it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from porter.report.errors import ReportError

_VERSION = 1


@dataclass(frozen=True)
class Tests:
    """Upstream's cases that called a factory."""

    passed: int
    failed: int
    skipped: int
    left_out: int
    over: int
    calls: int
    error: str

    @property
    def total(self) -> int:
        """Cases in all."""
        return self.passed + self.failed + self.skipped + self.left_out + self.over


@dataclass(frozen=True)
class DeviceFinding:
    """One strict finding, as ``porter.verify.simulation`` defines it."""

    factory: str
    code: str
    operator: str
    path: str
    line: int
    title: str
    detail: str
    rewrite: str
    allowed: bool
    times: int


@dataclass(frozen=True)
class Device:
    """Means of a factory's kernel calls on the simulated device; ``estimated_us`` is an estimate."""

    calls: int
    operators: float
    round_trips: float
    bytes: int
    estimated_us: float
    worst_us: float
    findings: tuple[DeviceFinding, ...]


@dataclass(frozen=True)
class Results:
    """One run. ``name``: the file's. ``device``: ``cpu``, or ``the simulated device``. ``estimate``: what its times stand on."""

    name: str
    device: str
    flavour: str
    simulated: bool
    full: bool
    counts: Mapping[str, int]
    environment: tuple[tuple[str, str], ...]
    tests: Mapping[str, Tests]
    costs: Mapping[str, Device]
    problems: tuple[tuple[str, str, str], ...]
    estimate: str = ""

    @property
    def findings(self) -> tuple[DeviceFinding, ...]:
        """Strict findings of all factories, by place."""
        rows = [one for device in self.costs.values() for one in device.findings]
        return tuple(
            sorted(rows, key=lambda one: (one.allowed, one.path, one.line, one.code, one.factory, one.operator))
        )


def _device(factory: str, row: Mapping[str, Any]) -> Device:
    names = ("code", "operator", "path", "line", "title", "detail", "rewrite", "allowed", "times")
    return Device(
        calls=row["calls"],
        operators=row["operators_a_call"],
        round_trips=row["round_trips_a_call"],
        bytes=row["bytes_a_call"],
        estimated_us=row["estimated_us_a_call"],
        worst_us=row["worst_us"],
        findings=tuple(
            DeviceFinding(factory, **{name: one[name] for name in names}) for one in (*row["findings"], *row["allowed"])
        ),
    )


def parse_results(data: Mapping[str, Any], name: str) -> Results:
    """Results from plain data.

    Raises:
        ReportError: another version, or not the results of a verification.
    """
    fix = "porter verify --json FILE"
    if data.get("version") != _VERSION:
        raise ReportError(
            f"results of version {_VERSION} are wanted, found {data.get('version')!r}", path=name, fix=fix
        )
    try:
        simulated, environment = bool(data.get("simulated", False)), data["environment"]
        rows = {row["factory"]: row for row in data["factories"]}
        return Results(
            name=name,
            device="the simulated device" if simulated else data["device"],
            flavour=data["flavour"],
            simulated=simulated,
            full=data["full"],
            counts={verdict: count for verdict, count in sorted(data["counts"].items()) if count},
            environment=tuple(
                sorted((key, value) for key, value in environment.items() if isinstance(value, str) and value)
            ),
            tests={
                factory: Tests(
                    row["passed"],
                    row["failed"],
                    row["skipped"],
                    row["left_out"],
                    row["over"],
                    row["calls"],
                    row["error"],
                )
                for factory, row in sorted(rows.items())
            },
            costs={
                factory: _device(factory, row["simulated"])
                for factory, row in sorted(rows.items())
                if row.get("simulated")
            },
            problems=tuple(
                (one["code"], f"{one['path']}:{one['line']}" if one["line"] else one["path"], one["message"])
                for one in data["findings"]
            ),
            estimate=environment.get("simulation", {}).get("estimate", "") if simulated else "",
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ReportError(f"not the results of a verification: {error!r}", path=name, fix=fix) from error


def read_results(path: Path) -> Results:
    """Results from a file.

    Raises:
        ReportError: it cannot be read, or see ``parse_results``.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReportError(f"cannot be read: {error}", path=str(path), fix="porter verify --json FILE") from error
    if not isinstance(data, dict):
        raise ReportError("not the results of a verification", path=str(path), fix="porter verify --json FILE")
    return parse_results(data, path.name)


def read_all(paths: Sequence[Path]) -> tuple[Results | None, Results | None]:
    """The run whose tests count, and the one on the simulated device, of at most two files.

    Raises:
        ReportError: two runs of one kind, or see ``read_results``.
    """
    plain = simulated = None
    for path in paths:
        results = read_results(path)
        if (simulated if results.simulated else plain) is not None:
            kind = "the simulated device" if results.simulated else "a torch device"
            raise ReportError(f"a second run on {kind}", path=str(path), fix="give one run of each kind")
        if results.simulated:
            simulated = results
        else:
            plain = results
    return plain, simulated
