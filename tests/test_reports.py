"""Every output format prints the same findings."""

from __future__ import annotations

import json

import pytest

from porter.findings import KINDS, Finding, Level, Report
from porter.report.findings import FORMATS

FINDINGS = (
    Finding(
        "PT021",
        "stale: a, b\nsecond line 100%",
        symbol="m.f_tl",
        path="overrides/x.py",
        line=4,
        expected="body 1",
        found="body 2",
        fix="porter ack f_tl",
    ),
    Finding("PT010", "nobody decides about g", symbol="g", path="porter.toml", fix="porter new g"),
    Finding("PT024", "for information", level=Level.NOTE),
)


@pytest.fixture
def report() -> Report:
    return Report.of([*FINDINGS, FINDINGS[0]])


def test_exit_code_counts_errors_alone(report: Report) -> None:
    assert (len(report.findings), report.errors, report.exit_code) == (3, 2, 1)
    assert Report.of([FINDINGS[2]]).exit_code == 0
    assert Report().exit_code == 0


def test_order_does_not_depend_on_input(report: Report) -> None:
    assert Report.of(reversed(FINDINGS)) == report


def test_text(report: Report) -> None:
    text = FORMATS["text"](report)
    assert "overrides/x.py:4: PT021 override-stale" in text
    assert "fix:      porter new g" in text
    assert text.endswith("2 findings, 1 note\n")
    assert FORMATS["text"](Report()) == "clean\n"


def test_json(report: Report) -> None:
    data = json.loads(FORMATS["json"](report))
    assert (data["version"], data["errors"], len(data["findings"])) == (1, 2, 3)
    assert data["findings"][1]["line"] == 4


def test_sarif(report: Report) -> None:
    data = json.loads(FORMATS["sarif"](report))
    (run,) = data["runs"]
    assert data["version"] == "2.1.0"
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["PT010", "PT021", "PT024"]
    stale = run["results"][1]
    assert stale["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "overrides/x.py"},
        "region": {"startLine": 4},
    }
    assert run["tool"]["driver"]["rules"][stale["ruleIndex"]]["id"] == stale["ruleId"]


def test_github_escapes(report: Report) -> None:
    line = next(row for row in FORMATS["github"](report).splitlines() if "PT021" in row)
    assert line.startswith("::error file=overrides/x.py,line=4,title=PT021 override-stale::")
    assert "%0Asecond line 100%25" in line


def test_codes_are_numbered_once() -> None:
    assert all(code == kind.code and kind.title.endswith(".") for code, kind in KINDS.items())
    assert len({kind.name for kind in KINDS.values()}) == len(KINDS)
