"""Adding verdicts up: a row a factory, the findings, the exit code, and their forms on a terminal, in JSON and in JUnit."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from porter.findings import Finding
from porter.verify.catalogue import Catalogue
from porter.verify.events import CaseResult, Events
from porter.verify.judge import Verdict
from porter.verify.session import Session
from porter.verify.simulation import DeviceUse, strict_findings, summed
from porter.verify.workspace import OPS

NO_KERNEL = "(no kernel)"
_SHOWN_CASES = 20


@dataclass(frozen=True)
class FactoryRow:
    """What the run says of one factory.

    ``status``: ``implemented``, ``left out`` or ``missing``. A case counts for every factory that it called, and for the
    one it judges when it called none. ``worst`` (largest difference in comparisons that allow one) and ``exact``
    (comparisons that found equality) come from cases of tests that always call this factory. ``seconds`` is time inside kernels,
    ``case_seconds`` time of the cases that judge it. ``unjudged``: arguments whose write mask is unknown; ``masked``:
    is there a mask at all. ``simulated``: what its calls did on the simulated device, None on another.
    """

    factory: str
    status: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    left_out: int = 0
    over: int = 0
    calls: int = 0
    worst: float | None = None
    exact: int = 0
    seconds: float = 0.0
    case_seconds: float = 0.0
    masked: bool = False
    unjudged: tuple[str, ...] = ()
    simulated: DeviceUse | None = None

    @property
    def error(self) -> str:
        """``exact``, the largest difference, or "-" when nothing was compared in a way that can be seen."""
        if self.worst is not None and self.worst != 0.0:
            return f"{self.worst:.1e}" if math.isfinite(self.worst) else str(self.worst)
        return "exact" if self.exact or self.worst is not None else "-"


@dataclass(frozen=True)
class VerifyReport:
    """One verification. ``exit_code``: 0 clean, 1 findings. (2 and 3 belong to raised errors.)"""

    flavour: str
    device: str
    full: bool
    memory: int | None
    seconds: float | None
    header: Mapping[str, Any]
    rows: tuple[FactoryRow, ...]
    cases: tuple[CaseResult, ...]
    findings: tuple[Finding, ...]
    excluded: Mapping[str, str]
    elapsed: float = 0.0
    partial: bool = False
    simulated: bool = False
    log: str = field(default="", repr=False)

    @property
    def exit_code(self) -> int:
        """0 when there is no finding."""
        return 1 if self.findings else 0

    def count(self, verdict: Verdict) -> int:
        """Number of cases with that verdict."""
        return sum(1 for case in self.cases if case.verdict is verdict)

    def of(self, verdict: Verdict) -> tuple[CaseResult, ...]:
        """Cases with that verdict."""
        return tuple(case for case in self.cases if case.verdict is verdict)


def _judged(case: CaseResult, catalogue: Catalogue) -> str:
    entry = catalogue.tests.get(case.test)
    if entry is not None and entry.factories:
        return entry.factories[0]
    return next(iter(case.factories), NO_KERNEL)


def _compared(case: CaseResult, catalogue: Catalogue) -> tuple[str, ...]:
    """Factories whose results the case compares: those that its test always calls."""
    entry = catalogue.tests.get(case.test)
    always = tuple(name for name in entry.factories if name in case.factories) if entry is not None else ()
    return always or (_judged(case, catalogue),)


def _counted_for(case: CaseResult, catalogue: Catalogue, excluded: Mapping[str, str]) -> tuple[str, ...]:
    if case.verdict is Verdict.LEFT_OUT:
        entry = catalogue.tests.get(case.test)
        wanted = (*case.missing, *(entry.factories if entry is not None else ()))
        return tuple(dict.fromkeys(name for name in wanted if name in excluded)) or (_judged(case, catalogue),)
    called = tuple(dict.fromkeys([*case.factories, *case.missing]))
    if called:
        return called
    return (NO_KERNEL,) if case.verdict is Verdict.PASSED else (_judged(case, catalogue),)


def _asked(events: Events, session: Session, catalogue: Catalogue) -> set[str]:
    """Factories that a narrowed run is about: those of the tests it collected, or those selected."""
    if session.select is not None:
        return set(session.select)
    tests = {test for test, _ in events.collected.values()}
    return {name for test, entry in catalogue.tests.items() if test in tests for name in entry.all_factories}


def _rows(events: Events, session: Session, catalogue: Catalogue) -> tuple[FactoryRow, ...]:
    names = {*events.exported, *session.excluded, *session.masks, *catalogue.factories}
    if session.select is not None or session.files is not None or events.partial:
        names &= _asked(events, session, catalogue)
    verdicts: dict[str, Counter[Verdict]] = defaultdict(Counter)
    calls: Counter[str] = Counter()
    kernel_seconds: defaultdict[str, float] = defaultdict(float)
    case_seconds: defaultdict[str, float] = defaultdict(float)
    worst: dict[str, float] = {}
    exact: Counter[str] = Counter()
    unjudged: dict[str, set[str]] = defaultdict(set)
    for case in events.cases.values():
        for name in _counted_for(case, catalogue, session.excluded):
            verdicts[name][case.verdict] += 1
        for name, use in case.factories.items():
            calls[name] += use.calls
            kernel_seconds[name] += use.seconds
            unjudged[name] |= set(use.unjudged)
        case_seconds[_judged(case, catalogue)] += case.seconds
        for name in _compared(case, catalogue):
            exact[name] += case.exact
            if case.worst is not None:
                known = worst.get(name, 0.0)
                worst[name] = case.worst if math.isnan(case.worst) else max(known, case.worst)
    names |= set(verdicts) if session.select is None else set(verdicts) & set(session.select)

    def status(name: str) -> str:
        if name == NO_KERNEL:
            return "-"
        if name in session.excluded:
            return "left out"
        return "implemented" if name in events.exported else "missing"

    return tuple(
        FactoryRow(
            factory=name,
            status=status(name),
            passed=verdicts[name][Verdict.PASSED],
            failed=verdicts[name][Verdict.FAILED],
            skipped=verdicts[name][Verdict.SKIPPED],
            left_out=verdicts[name][Verdict.LEFT_OUT],
            over=verdicts[name][Verdict.OVER],
            calls=calls[name],
            worst=worst.get(name),
            exact=exact[name],
            seconds=kernel_seconds[name],
            case_seconds=case_seconds[name],
            masked=name in session.masks,
            unjudged=tuple(sorted(unjudged[name])),
            simulated=events.simulated.get(name),
        )
        for name in sorted(names, key=lambda name: (name == NO_KERNEL, name))
    )


def _path(test: str) -> str:
    return f"{OPS}/{test.partition('::')[0]}.py"


def _failures(events: Events) -> Iterable[Finding]:
    totals = Counter(test for test, _ in events.collected.values())
    groups: dict[tuple[str, str, int, str], list[CaseResult]] = defaultdict(list)
    for case in events.cases.values():
        if case.verdict is Verdict.FAILED:
            text = case.reason if case.code in ("PV002", "PV003", "PV004", "PV010") else ""
            groups[case.test, case.code, case.line, text].append(case)
    for (test, code, line, _), cases in groups.items():
        first = cases[0]
        many = f"{len(cases)} of {max(totals[test], len(cases))} cases"
        yield Finding(
            code=code,
            message=f"{test}: {many}: {first.reason}",
            symbol=next(iter(first.missing or first.factories), ""),
            path=_path(test),
            line=line or None,
            found=f"first: [{first.case}]" if first.case else "",
            fix=f"porter verify, or pytest -k {test.partition('::')[2]!r}",
        )


def _disagreements(events: Events, session: Session, catalogue: Catalogue) -> Iterable[Finding]:
    """Where the catalogue says something else than the run. Only asked of a run that nobody narrowed."""
    by_test: dict[str, list[CaseResult]] = defaultdict(list)
    for case in events.cases.values():
        by_test[case.test].append(case)
    for skip in catalogue.skips:
        if skip.flavour != session.flavour or skip.test not in by_test:
            continue
        found = sum(
            1
            for case in by_test[skip.test]
            if case.verdict is Verdict.SKIPPED and catalogue.skip_for(skip.flavour, skip.test, case.case) is skip
        )
        if found != skip.cases:
            yield Finding(
                "PV005",
                f"{skip.test}: {skip.reason}",
                path=_path(skip.test),
                expected=f"{skip.cases} skips",
                found=str(found),
            )
    for test, entry in catalogue.tests.items():
        cases = by_test.get(test, [])
        stem = test.partition("::")[0]
        if not cases:
            if session.select is None and (session.files is None or stem in session.files):
                yield Finding("PV010", f"the catalogue names {test}, which did not run", symbol=test, path=_path(test))
            continue
        if any(case.verdict not in (Verdict.PASSED, Verdict.SKIPPED) for case in cases):
            continue
        called = {name for case in cases for name in case.factories}
        for factory in entry.factories:
            if factory not in called and not all(case.verdict is Verdict.SKIPPED for case in cases):
                yield Finding(
                    "PV010",
                    f"the catalogue says that {test} calls {factory}; no case did",
                    symbol=factory,
                    path=_path(test),
                )


def build_report(events: Events, session: Session, catalogue: Catalogue, elapsed: float = 0.0) -> VerifyReport:
    """Add up what the processes recorded."""
    findings = list(_failures(events))
    findings += [Finding(code, message, path=path) for code, message, path in dict.fromkeys(events.problems)]
    blocked = any(finding.code in ("PV008", "PV012") for finding in findings)
    for nodeid in events.open:
        if not any(code == "PV007" and nodeid in message for code, message, _ in events.problems):
            findings.append(Finding("PV007", f"the test process ended inside {nodeid}"))
    lost = [nodeid for nodeid in events.collected if nodeid not in events.cases and nodeid not in events.open]
    if lost and not events.partial:
        findings.append(Finding("PV013", f"{len(lost)} collected cases never ran, the first {lost[0]}"))
    if not events.cases and not blocked:
        findings.append(
            Finding("PV009", "no test case ran", fix="look at the selection and at the test process's output")
        )
    if not events.partial and not blocked and not lost and not events.open:
        findings += _disagreements(events, session, catalogue)
    rows = _rows(events, session, catalogue)
    if not blocked and events.finished:
        findings += [
            Finding("PV002", f"{row.factory} is neither in the backend nor left out on purpose", symbol=row.factory)
            for row in rows
            if row.status == "missing"
        ]
    if session.masks:
        findings += [
            Finding("PV014", f"{row.factory}: its kernels ran without write masks", symbol=row.factory)
            for row in rows
            if row.calls and not row.masked
        ]
    findings += strict_findings({row.factory: row.simulated for row in rows if row.simulated is not None})
    return VerifyReport(
        flavour=session.flavour,
        device=session.device,
        full=session.full,
        memory=session.memory,
        seconds=session.seconds,
        header=events.header,
        rows=rows,
        cases=tuple(sorted(events.cases.values(), key=lambda case: case.nodeid)),
        findings=tuple(sorted(set(findings), key=lambda finding: finding.sort_key)),
        excluded=dict(session.excluded),
        elapsed=elapsed,
        partial=events.partial,
        simulated=session.simulated,
    )


# forms

_COLUMNS = (
    "factory",
    "passed",
    "failed",
    "skipped",
    "left out",
    "over cap",
    "worst error",
    "calls",
    "kernel s",
    "case s",
    "mask",
)


def _cells(row: FactoryRow) -> tuple[str, ...]:
    def number(value: int) -> str:
        return str(value) if value else "."

    mask = ("yes" if not row.unjudged else f"but {','.join(row.unjudged)}") if row.masked else "no"
    return (
        row.factory if row.status in ("implemented", "-") else f"{row.factory} ({row.status})",
        number(row.passed),
        number(row.failed),
        number(row.skipped),
        number(row.left_out),
        number(row.over),
        row.error,
        number(row.calls),
        f"{row.seconds:.1f}",
        f"{row.case_seconds:.1f}",
        mask if row.calls else ".",
    )


def render_table(rows: Iterable[FactoryRow]) -> str:
    """The rows as a text table."""
    return _table([_COLUMNS, *(_cells(row) for row in rows)])


def _table(table: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(line[index]) for line in table) for index in range(len(table[0]))]
    lines = []
    for index, line in enumerate(table):
        cells = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:-1], widths[1:-1], strict=True)),
            line[-1],
        ]
        lines.append("  ".join(cells).rstrip())
        if index == 0:
            lines.append("  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _grouped(cases: Iterable[CaseResult]) -> Iterable[str]:
    groups: dict[tuple[str, str], list[CaseResult]] = defaultdict(list)
    for case in cases:
        groups[case.test, case.reason].append(case)
    for (test, reason), members in sorted(groups.items()):
        yield f"  {test}, {len(members)} case{'s' if len(members) != 1 else ''}: {reason}"


_DEVICE_COLUMNS = ("factory", "calls", "ops", "round trips", "bytes", "est. us", "worst us", "strict", "allowed")


def _codes(use: DeviceUse) -> str:
    return ",".join(sorted({one.code for one in use.findings})) or "."


def render_device(report: VerifyReport) -> str:
    """What the kernel calls did on the simulated device: a table, and what comments allow."""
    uses = [(row.factory, row.simulated) for row in report.rows if row.simulated is not None]
    cells = [
        (
            factory,
            str(use.calls),
            f"{use.a_call('operators'):.1f}",
            f"{use.a_call('round_trips'):.1f}",
            f"{use.bytes_a_call:.0f}",
            f"{use.estimated_us_a_call:.0f}",
            f"{use.worst_us:.0f}",
            _codes(use),
            str(len(use.allowed)) if use.allowed else ".",
        )
        for factory, use in uses
    ]
    lines = [_table([_DEVICE_COLUMNS, *cells]), "", f"Means a kernel call at these sizes; times: {_basis(report)}."]
    if allowed := summed(one for _, use in uses for one in use.allowed):
        lines += ["", "Allowed by a NEURON comment, or the caller's:", *(f"  {one.render()}" for one in allowed)]
    return "\n".join(lines)


def _basis(report: VerifyReport) -> str:
    return str(report.header.get("simulation", {}).get("estimate", "an estimate"))


def render_text(report: VerifyReport, *, failures: bool = True) -> str:
    """The whole report for a terminal."""
    lines = [render_table(report.rows), ""]
    if report.simulated:
        lines += [render_device(report), ""]
    for verdict, title in ((Verdict.SKIPPED, "Skipped by upstream itself"), (Verdict.LEFT_OUT, "Left out")):
        if cases := report.of(verdict):
            lines += [f"{title}:", *_grouped(cases), ""]
    if over := report.of(Verdict.OVER):
        lines += ["Over the cap:", *(f"  {case.test}[{case.case}]: {case.reason}" for case in over), ""]
    silent = [row.factory for row in report.rows if row.status == "implemented" and not row.calls and not row.failed]
    if silent and not report.partial:
        lines += [f"No upstream case called: {', '.join(silent)}", ""]
    if report.findings:
        lines.append("Findings:")
        for finding in report.findings:
            place = f"{finding.path}:{finding.line}" if finding.line else finding.path
            detail = " ".join(
                text for text in (f"expected {finding.expected}," if finding.expected else "", finding.found) if text
            )
            lines.append(
                f"  {finding.code} {place + ': ' if place else ''}{finding.message}{' (' + detail + ')' if detail else ''}"
            )
        lines.append("")
    if failures and (failed := report.of(Verdict.FAILED)):
        lines += ["Failed cases:", *(f"  {case.nodeid}" for case in failed[:_SHOWN_CASES])]
        if len(failed) > _SHOWN_CASES:
            lines.append(f"  and {len(failed) - _SHOWN_CASES} more; the JSON report lists all")
        lines.append("")
    counts = ", ".join(f"{report.count(verdict)} {verdict}" for verdict in Verdict if report.count(verdict))
    size = "upstream's sizes" if report.full else "shrunk sizes"
    cpu = sum(case.cpu for case in report.cases)
    time = f"{report.elapsed:.0f} s ({cpu:.0f} processor seconds in the cases)"
    device = "the simulated device" if report.simulated else report.device
    lines.append(
        f"{report.flavour} on {device}, {size}: {counts or 'no cases'}; {len(report.findings)} findings; {time}"
    )
    return "\n".join(lines)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def _row_json(row: FactoryRow) -> dict[str, Any]:
    simulated = None if row.simulated is None else row.simulated.to_dict()
    return asdict(replace(row, simulated=None)) | {"error": row.error, "simulated": simulated}


def report_json(report: VerifyReport) -> dict[str, Any]:
    """The report as plain data: ``version`` 1."""
    counts = {str(verdict): report.count(verdict) for verdict in Verdict}
    data = {
        "version": 1,
        "flavour": report.flavour,
        "device": report.device,
        "simulated": report.simulated,
        "full": report.full,
        "caps": {"memory": report.memory, "seconds": report.seconds},
        "environment": dict(report.header),
        "exit_code": report.exit_code,
        "elapsed": round(report.elapsed, 3),
        "counts": counts,
        "excluded": dict(sorted(report.excluded.items())),
        "factories": [_row_json(row) for row in report.rows],
        "findings": [asdict(finding) for finding in report.findings],
        "cases": [asdict(case) for case in report.cases],
    }
    result = _finite(data)
    assert isinstance(result, dict)
    return result


def _device_suite(root: ElementTree.Element, report: VerifyReport) -> None:
    """A suite with a case a factory: its costs as properties, its strict findings as failures."""
    uses = [(row.factory, row.simulated) for row in report.rows if row.simulated is not None]
    failing = sum(bool(use.findings) for _, use in uses)
    attributes = {"tests": str(len(uses)), "failures": str(failing), "errors": "0"}
    suite = ElementTree.SubElement(root, "testsuite", {"name": "simulated device", **attributes})
    for factory, use in uses:
        case = ElementTree.SubElement(suite, "testcase", classname="porter.sim", name=factory)
        properties = ElementTree.SubElement(case, "properties")
        data = use.to_dict()
        names = ("calls", "operators_a_call", "round_trips_a_call", "bytes_a_call", "estimated_us_a_call", "worst_us")
        for name in names:
            ElementTree.SubElement(properties, "property", name=name, value=str(data[name]))
        ElementTree.SubElement(properties, "property", name="estimate", value=_basis(report))
        for one in use.allowed:
            ElementTree.SubElement(properties, "property", name="allowed", value=one.render())
        for one in use.findings:
            ElementTree.SubElement(case, "failure", type=one.code, message=one.render())


def report_junit(report: VerifyReport) -> str:
    """The report as JUnit XML: a suite an upstream file, a case a case, and a suite for findings that are no case."""
    root = ElementTree.Element("testsuites", name="porter verify")
    suites: dict[str, list[CaseResult]] = defaultdict(list)
    for case in report.cases:
        suites[case.test.partition("::")[0]].append(case)
    for stem, cases in sorted(suites.items()):
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=stem,
            tests=str(len(cases)),
            failures=str(sum(case.verdict is Verdict.FAILED for case in cases)),
            skipped=str(sum(case.verdict not in (Verdict.FAILED, Verdict.PASSED) for case in cases)),
            errors="0",
            time=f"{sum(case.seconds for case in cases):.3f}",
        )
        for case in cases:
            function = case.test.partition("::")[2]
            name = f"{function}[{case.case}]" if case.case else function
            element = ElementTree.SubElement(
                suite, "testcase", classname=f"{OPS.replace('/', '.')}.{stem}", name=name, time=f"{case.seconds:.3f}"
            )
            if case.verdict is Verdict.FAILED:
                ElementTree.SubElement(element, "failure", type=case.code, message=case.reason)
            elif case.verdict is not Verdict.PASSED:
                ElementTree.SubElement(element, "skipped", type=str(case.verdict), message=case.reason)
    if report.simulated:
        _device_suite(root, report)
    failed_codes = {case.code for case in report.cases if case.verdict is Verdict.FAILED}
    shown = failed_codes | ({"PV015"} if report.simulated else set())
    other = [finding for finding in report.findings if finding.code not in shown or not finding.path]
    if other:
        suite = ElementTree.SubElement(
            root, "testsuite", name="findings", tests=str(len(other)), failures=str(len(other)), errors="0"
        )
        for finding in other:
            element = ElementTree.SubElement(
                suite, "testcase", classname="porter.verify", name=f"{finding.code} {finding.symbol}".strip()
            )
            ElementTree.SubElement(element, "failure", type=finding.code, message=finding.message)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def write_report(report: VerifyReport, *, json_path: Path | None = None, junit_path: Path | None = None) -> None:
    """Write the report's files."""
    if json_path is not None:
        json_path.write_text(json.dumps(report_json(report), indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if junit_path is not None:
        junit_path.write_text(report_junit(report), encoding="utf-8")
