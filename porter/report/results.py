"""What ``porter verify --json`` wrote, as the page shows it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
        return _ordered(self.costs.values())


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


@dataclass(frozen=True)
class Step:
    """Vendor functions called one by one on the simulated device. ``costs``: by ``<module>.<qualified name>``."""

    name: str
    estimate: str
    costs: Mapping[str, Device]

    def of(self, package: str, names: Iterable[str]) -> Device | None:
        """What was measured under one of a symbol's names; a name of a compiled module goes by the package that shows it."""
        for name in names:
            found = self.costs.get(name) or self.costs.get(name.replace(f"{package}.", f"{package}._C.", 1))
            if found is not None:
                return found
        return None

    @property
    def findings(self) -> tuple[DeviceFinding, ...]:
        """Strict findings of all functions, by place."""
        return _ordered(self.costs.values())


def _ordered(devices: Iterable[Device]) -> tuple[DeviceFinding, ...]:
    rows = [one for device in devices for one in device.findings]
    return tuple(sorted(rows, key=lambda one: (one.allowed, one.path, one.line, one.code, one.factory, one.operator)))


def _step_device(symbol: str, calls: Sequence[Mapping[str, Any]]) -> Device:
    count, costs = len(calls), [call["cost"] for call in calls]
    found: dict[tuple[Any, ...], DeviceFinding] = {}
    names = ("code", "operator", "path", "line", "title", "detail", "rewrite", "allowed", "times")
    for call in calls:
        for row in (*call["findings"], *call["allowed"]):
            one = DeviceFinding(symbol, **{name: row[name] for name in names})
            key = (one.code, one.operator, one.path, one.line, one.allowed)
            found[key] = replace(one, times=one.times + found[key].times) if key in found else one
    return Device(
        calls=count,
        operators=round(sum(cost["operators"] for cost in costs) / count, 2),
        round_trips=round(sum(cost["round_trips"] for cost in costs) / count, 2),
        bytes=round(sum(cost["bytes_read"] + cost["bytes_written"] for cost in costs) / count),
        estimated_us=round(sum(cost["estimated_us"] for cost in costs) / count, 1),
        worst_us=max(cost["estimated_us"] for cost in costs),
        findings=tuple(found.values()),
    )


def parse_step(data: Mapping[str, Any], name: str) -> Step:
    """A decode step's calls from plain data.

    Raises:
        ReportError: another version, or something else.
    """
    try:
        if data["version"] != _VERSION:
            raise ReportError(f"a step of version {_VERSION} is wanted, found {data['version']!r}", path=name)
        calls: dict[str, list[Mapping[str, Any]]] = {}
        for rows in data["packages"].values():
            for call in rows.values():
                calls.setdefault(call["symbol"], []).append(call)
        costs = {symbol: _step_device(symbol, calls[symbol]) for symbol in sorted(calls)}
        return Step(name, data["estimate"], costs)
    except (KeyError, TypeError, AttributeError) as error:
        raise ReportError(f"not a decode step's calls: {error!r}", path=name) from error


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


def read_results(path: Path) -> Results | Step:
    """Results from a file.

    Raises:
        ReportError: it cannot be read, or see ``parse_results`` and ``parse_step``.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ReportError(f"cannot be read: {error}", path=str(path), fix="porter verify --json FILE") from error
    if not isinstance(data, dict):
        raise ReportError("not the results of a verification", path=str(path), fix="porter verify --json FILE")
    return parse_step(data, path.name) if data.get("kind") == "decode step" else parse_results(data, path.name)


@dataclass(frozen=True)
class Measured:
    """What was given: the run whose tests count, the one on the simulated device, and a decode step's vendor calls."""

    tests: Results | None = None
    device: Results | None = None
    step: Step | None = None


def read_all(paths: Sequence[Path]) -> Measured:
    """What the files hold, one of a kind.

    Raises:
        ReportError: two of one kind, or see ``read_results``.
    """
    measured = Measured()
    known: Results | Step | None
    for path in paths:
        found = read_results(path)
        if isinstance(found, Step):
            kind, known, added = "the vendor calls of a step", measured.step, replace(measured, step=found)
        elif found.simulated:
            kind, known, added = "a run on the simulated device", measured.device, replace(measured, device=found)
        else:
            kind, known, added = "a run on a torch device", measured.tests, replace(measured, tests=found)
        if known is not None:
            raise ReportError(f"a second time {kind}", path=str(path), fix="give one of each kind")
        measured = added
    return measured
