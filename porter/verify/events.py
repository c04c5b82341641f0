"""What the test processes leave behind: one JSON object a line, written as it happens, so that a dead process loses
nothing but the case it died in."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from porter.verify.judge import Verdict
from porter.verify.simulation import DeviceUse, use_from


@dataclass(frozen=True)
class FactoryCount:
    """Kernel calls of one factory in a case."""

    calls: int
    seconds: float
    unjudged: tuple[str, ...] = ()


@dataclass(frozen=True)
class CaseResult:
    """One finished case. ``test``: ``<file stem>::<function>``; ``case``: parameter id. ``worst``: largest difference
    in a comparison that allows one; ``cpu``: processor seconds of the call; ``exact``: comparisons that found equality; ``peak``: bytes that the process grew
    by. ``line``: where a failure stands in the test's file, 0 when unknown."""

    nodeid: str
    test: str
    case: str
    verdict: Verdict
    code: str = ""
    reason: str = ""
    line: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    peak: int = 0
    worst: float | None = None
    exact: int = 0
    missing: tuple[str, ...] = ()
    factories: Mapping[str, FactoryCount] = field(default_factory=dict)


@dataclass
class Events:
    """All that the processes of one run recorded, merged. ``collected``: node id to (test, case) of every case meant to
    run; ``problems``: (finding code, message, path). ``simulated``: factory to its use of the simulated device, the cases'
    own added up."""

    cases: dict[str, CaseResult] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)
    collected: dict[str, tuple[str, str]] = field(default_factory=dict)
    partial: bool = False
    problems: list[tuple[str, str, str]] = field(default_factory=list)
    exported: tuple[str, ...] = ()
    header: dict[str, Any] = field(default_factory=dict)
    finished: int = 0
    simulated: dict[str, DeviceUse] = field(default_factory=dict)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(item) for item in value]
    return value


class EventWriter:
    """Appends to one file; every event is flushed."""

    def __init__(self, path: Path) -> None:
        self._file: TextIO = path.open("a", encoding="utf-8")

    def write(self, event: str, **data: Any) -> None:
        """One event."""
        self._file.write(json.dumps({"event": event, **_plain(data)}, sort_keys=True) + "\n")
        self._file.flush()

    def case(self, result: CaseResult) -> None:
        """A finished case."""
        self.write("case", **asdict(result))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _lines(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:  # the last line of a process that died while writing
                continue


def read_events(folder: Path) -> Events:
    """Merge every ``*.jsonl`` in ``folder``, in file order."""
    events = Events()
    exported: set[str] = set()
    for row in _lines(folder):
        match row.pop("event"):
            case "start":
                events.header = row
            case "exported":
                exported |= set(row["factories"])
            case "collected":
                events.collected |= {nodeid: (test, case) for nodeid, test, case in row["cases"]}
                events.partial |= row["partial"]
            case "begin":
                events.open.append(row["nodeid"])
            case "case":
                row["verdict"] = Verdict(row["verdict"])
                row["worst"] = None if row["worst"] is None else float(row["worst"])
                row["missing"] = tuple(row["missing"])
                row["factories"] = {
                    name: FactoryCount(count["calls"], count["seconds"], tuple(count["unjudged"]))
                    for name, count in sorted(row["factories"].items())
                }
                result = CaseResult(**row)
                events.cases[result.nodeid] = result
            case "simulated":
                for name, use in row["factories"].items():
                    events.simulated[name] = events.simulated.get(name, DeviceUse()).plus(use_from(use))
            case "problem":
                events.problems.append((row["code"], row["message"], row["path"]))
            case "finish":
                events.finished += 1
    events.open = [nodeid for nodeid in dict.fromkeys(events.open) if nodeid not in events.cases]
    events.exported = tuple(sorted(exported))
    return events
