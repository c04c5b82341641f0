"""Findings as text, JSON, SARIF and GitHub annotations."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from porter import __version__
from porter.codec import Json
from porter.findings import KINDS, Finding, FindingKind, Level, Report

FORMAT_VERSION = 1


def _kind(code: str) -> FindingKind:
    if code in KINDS:
        return KINDS[code]
    from porter.rules import RULES

    rule = RULES[code]
    return FindingKind(code, rule.name, rule.title)


def text(report: Report) -> str:
    """One block a finding: place, code, what was expected and found, and the fix."""
    if not report.findings:
        return "clean\n"
    lines: list[str] = []
    for finding in report.findings:
        place = finding.path + (f":{finding.line}" if finding.line else "")
        lines.append(f"{place + ': ' if place else ''}{finding.code} {_kind(finding.code).name}: {finding.message}")
        if finding.expected:
            lines.append(f"    expected: {finding.expected}")
        if finding.found:
            lines.append(f"    found:    {finding.found}")
        if finding.fix:
            lines.append(f"    fix:      {finding.fix}")
        lines.extend(f"    | {line}".rstrip() for line in finding.detail.splitlines())
    notes = len(report.findings) - report.errors
    tail = f", {notes} note{'s' if notes != 1 else ''}" if notes else ""
    lines.append(f"{report.errors} finding{'s' if report.errors != 1 else ''}{tail}")
    return "\n".join(lines) + "\n"


def as_json(report: Report) -> str:
    """``{"version": 1, "findings": [...], "errors": n}``, every finding with all its fields."""
    rows: list[Json] = [
        {
            "code": finding.code,
            "name": _kind(finding.code).name,
            "level": str(finding.level),
            "symbol": finding.symbol,
            "path": finding.path,
            "line": finding.line,
            "message": finding.message,
            "expected": finding.expected,
            "found": finding.found,
            "fix": finding.fix,
            "detail": finding.detail,
        }
        for finding in report.findings
    ]
    return (
        json.dumps({"version": FORMAT_VERSION, "errors": report.errors, "findings": rows}, indent=1, ensure_ascii=False)
        + "\n"
    )


def sarif(report: Report) -> str:
    """SARIF 2.1.0."""
    codes = sorted({finding.code for finding in report.findings})
    rules: list[Json] = [
        {"id": code, "name": _kind(code).name, "shortDescription": {"text": _kind(code).title}} for code in codes
    ]
    results: list[Json] = []
    for finding in report.findings:
        result: dict[str, Json] = {
            "ruleId": finding.code,
            "ruleIndex": codes.index(finding.code),
            "level": "error" if finding.level is Level.ERROR else "note",
            "message": {"text": _sentence(finding)},
        }
        if finding.path:
            region: dict[str, Json] = {"startLine": finding.line} if finding.line else {}
            location: dict[str, Json] = {"artifactLocation": {"uri": finding.path}}
            if region:
                location["region"] = region
            result["locations"] = [{"physicalLocation": location}]
        results.append(result)
    data: dict[str, Json] = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": {"name": "porter", "version": __version__, "rules": rules}}, "results": results}],
    }
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def _sentence(finding: Finding) -> str:
    parts = [finding.message]
    if finding.expected:
        parts.append(f"expected {finding.expected}")
    if finding.found:
        parts.append(f"found {finding.found}")
    if finding.fix:
        parts.append(f"fix: {finding.fix}")
    return "; ".join(parts)


def github(report: Report) -> str:
    """GitHub workflow commands, one a finding."""
    lines = []
    for finding in report.findings:
        level = "error" if finding.level is Level.ERROR else "notice"
        fields = [f"file={_property(finding.path)}"] if finding.path else []
        fields += [f"line={finding.line}"] if finding.line else []
        fields += [f"title={_property(f'{finding.code} {_kind(finding.code).name}')}"]
        lines.append(f"::{level} {','.join(fields)}::{_data(_sentence(finding))}")
    return "\n".join(lines) + ("\n" if lines else "")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


FORMATS: Mapping[str, Callable[[Report], str]] = {"text": text, "json": as_json, "sarif": sarif, "github": github}
