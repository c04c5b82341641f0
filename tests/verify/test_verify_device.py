"""Verification on the simulated device, from end to end on a tiny upstream: what a kernel does there is found, placed and
counted. The device is registered in the test processes alone."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from xml.etree import ElementTree

import pytest
from fake_upstream import OPS, make_overlay, make_upstream, write_tree

from porter.errors import UsageError
from porter.verify.api import VerifyOptions, run
from porter.verify.errors import HarnessError
from porter.verify.judge import Verdict
from porter.verify.origins import Origins, matching_lines
from porter.verify.report import VerifyReport, render_text, write_report
from porter.verify.simulation import DeviceFinding, DeviceUse, strict_findings

MODULES = {
    "tidy": """
        @pytest.mark.parametrize("rows", [2, 4])
        def test_tidy(rows):
            x = torch.randn(rows, 4, device="cuda")
            assert x.device.type == "neuron"
            out = torch.empty_like(x)
            ops.tidy_tl()(x, out)
            assert torch.equal(out, x * 2)
    """,
    "untidy": """
        def test_untidy():
            x = torch.ones(2, 4, device="cuda")
            out = torch.empty_like(x)
            ops.untidy_tl()(x, out)
            assert torch.equal(out, x * 8)
    """,
    "syncs": """
        def test_syncs():
            x = torch.ones(2, 4, device="cuda")
            ops.syncs_tl()(x)

        def test_strided():
            x = torch.zeros(4, 8, device="cuda")
            ops.fills_tl()(x[:, :4])
            assert x.sum().item() == 16
    """,
}
# What a user edits, and what is emitted from it: other lines, another layout.
SOURCE = """
import torch


def tidy_tl():
    def tidy(x, out):
        torch.mul(x, 2, out=out)

    return tidy


def _largest(x):
    return x.sum(
        -1
    ).argmax()


def untidy_tl():
    def untidy(x, out):
        place = _largest(x)
        out.copy_(x * x.sum().item())
        out[:, 0] += place * 0

    return untidy


def syncs_tl():
    def syncs(x):
        # NEURON: host sync the caller asks
        x.sum().item()

    return syncs


def fills_tl():
    def fills(out):
        out.fill_(1)

    return fills
"""
EMITTED = "# made by porter\n" + dedent(SOURCE).replace(
    "x.sum(\n        -1\n    ).argmax()", "x.sum(-1).argmax()"
).replace("\n\n\n", "\n\n")
CATALOGUE = "".join(
    f'[[test]]\nname = "{test}"\nfactories = ["{factory}"]\n'
    for test, factory in (
        ("tidy::test_tidy", "tidy_tl"),
        ("untidy::test_untidy", "untidy_tl"),
        ("syncs::test_syncs", "syncs_tl"),
        ("syncs::test_strided", "fills_tl"),
    )
)


def _line(text: str) -> int:
    return next(number for number, line in enumerate(SOURCE.splitlines(), 1) if text in line)


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> VerifyOptions:
    folder = tmp_path_factory.mktemp("device")
    write_tree(folder, {"project/bodies/kernels.py": SOURCE, "catalogue.toml": CATALOGUE, "shrink.toml": ""})
    return VerifyOptions(
        upstream=make_upstream(folder / "upstream", MODULES),
        overlay=make_overlay(folder / "overlay", {"kernels": EMITTED}),
        catalogue=folder / "catalogue.toml",
        shrinks=folder / "shrink.toml",
        origins={f"{OPS}/neuron/kernels.py": "bodies/kernels.py"},
        project=folder / "project",
        device="sim",
        threads=1,
    )


@pytest.fixture(scope="module")
def report(options: VerifyOptions) -> VerifyReport:
    return run(options)


def test_cases_pass_there(report: VerifyReport) -> None:
    assert report.count(Verdict.PASSED) == len(report.cases) == 5, render_text(report)
    assert report.simulated and report.device == "neuron"


def test_findings_name_code_and_override_line(report: VerifyReport) -> None:
    found = {(one.symbol, one.message.split()[0], one.path, one.line) for one in report.findings}
    where = "bodies/kernels.py"
    assert found == {
        ("untidy_tl", "SIM104", where, _line("return x.sum(")),
        ("untidy_tl", "SIM101", where, _line("x.sum().item())")),
        ("untidy_tl", "SIM105", where, _line("place * 0")),
        ("untidy_tl", "SIM107", where, _line("place * 0")),
    }
    assert report.exit_code == 1
    assert all(one.fix for one in report.findings)


def test_allowed_ones_are_listed_and_do_not_count(report: VerifyReport) -> None:
    uses = {row.factory: row.simulated for row in report.rows}
    syncs, fills = uses["syncs_tl"], uses["fills_tl"]
    assert syncs is not None and fills is not None
    place = next(number for number, line in enumerate(SOURCE.splitlines(), 1) if line.strip() == "x.sum().item()")
    assert {(one.path, one.line) for one in syncs.allowed} == {("bodies/kernels.py", place)}
    assert [one.code for one in syncs.allowed] == ["SIM101"] and not syncs.findings
    assert [one.code for one in fills.allowed] == ["SIM113"] and not fills.findings
    text = render_text(report)
    assert "Allowed by a NEURON comment" in text and f"bodies/kernels.py:{syncs.allowed[0].line}: SIM101" in text


def test_costs_are_of_the_kernel_alone(report: VerifyReport) -> None:
    tidy = {row.factory: row.simulated for row in report.rows}["tidy_tl"]
    assert tidy is not None
    assert tidy.calls == 2 and tidy.by_operator == {"mul": 2} and tidy.a_call("operators") == 1
    assert tidy.bytes_a_call == 2 * 3 * 4 * 4  # three rows of four floats on average, read and written
    assert tidy.estimated_us_a_call == tidy.worst_us == 60.0 and tidy.a_call("round_trips") == 0


def test_forms_hold_findings_and_costs(report: VerifyReport, tmp_path: Path) -> None:
    write_report(report, json_path=tmp_path / "a.json", junit_path=tmp_path / "a.xml")
    data = json.loads((tmp_path / "a.json").read_text())
    rows = {row["factory"]: row for row in data["factories"]}
    untidy = rows["untidy_tl"]["simulated"]
    assert {one["code"] for one in untidy["findings"]} == {"SIM101", "SIM104", "SIM105", "SIM107"}
    assert untidy["round_trips_a_call"] >= 2 and untidy["totals"]["fallbacks"] == 1
    assert "not measured" in data["environment"]["simulation"]["estimate"]
    assert data["environment"]["simulation"]["rates"]["dispatch_us"] == {"value": 60.0, "unit": "us"}
    suites = {suite.get("name"): suite for suite in ElementTree.parse(tmp_path / "a.xml").getroot()}
    device = suites["simulated device"]
    failed = {case.get("name"): {one.get("type") for one in case.findall("failure")} for case in device}
    assert failed["untidy_tl"] == {"SIM101", "SIM104", "SIM105", "SIM107"} and not failed["tidy_tl"]
    assert device.get("failures") == "1" and "findings" not in suites
    costs = {one.get("name"): one.get("value") for one in device.iter("property")}
    assert "operators_a_call" in costs and "not measured" in (costs["estimate"] or "")


def test_users_own_lists(options: VerifyOptions, tmp_path: Path) -> None:
    from dataclasses import replace

    (tmp_path / "operators.txt").write_text("aten::mul\n")
    (tmp_path / "rates.toml").write_text("dispatch_us = 5\n")
    chosen = replace(
        options, files=("tidy",), operators=tmp_path / "operators.txt", rates=tmp_path / "rates.toml", workspace=None
    )
    tidy = {row.factory: row.simulated for row in run(chosen).rows}["tidy_tl"]
    assert tidy is not None and tidy.worst_us == 5.0
    with pytest.raises(UsageError, match="--rates is the simulated device's"):
        run(replace(chosen, device="cpu", operators=None))
    with pytest.raises(UsageError, match="no such file"):
        run(replace(chosen, rates=tmp_path / "absent.toml"))


def test_a_device_that_is_not_there(options: VerifyOptions) -> None:
    from dataclasses import replace

    with pytest.raises(HarnessError, match="torch has no device 'xpu' here"):
        run(replace(options, device="xpu", files=("tidy",)))


def test_lines_of_origin() -> None:
    lines = matching_lines(EMITTED, SOURCE)
    for number, text in enumerate(EMITTED.splitlines(), 1):
        if text.strip().startswith("out"):
            assert SOURCE.splitlines()[lines[number - 1] - 1] == text
    assert lines[0] == 0 or SOURCE.splitlines()[lines[0] - 1] == ""


def test_places_outside_the_tree_stay(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a.py").write_text("x = 1\n")
    origins = Origins(tmp_path / "tree", {"b.py": "gone.py"}, tmp_path)
    assert origins.place("/elsewhere/a.py", 3) == ("/elsewhere/a.py", 3)
    assert origins.place(str(tmp_path / "tree" / "a.py"), 1) == ("a.py", 1)
    assert origins.place(str(tmp_path / "tree" / "b.py"), 1) == ("b.py", 1)
    assert origins.place("", 0) == ("", 0)


def test_a_shared_helper_is_one_finding() -> None:
    one = DeviceFinding("SIM104", "aten::sort", "a.py", 3, "f", "no kernel", "", "topk", False, False, 2)
    use = DeviceUse(1, findings=(one,))
    found = list(strict_findings({"b_tl": use, "a_tl": use}))
    assert [(finding.symbol, finding.path, finding.line) for finding in found] == [("a_tl", "a.py", 3)]
    assert "in a_tl, b_tl" in found[0].message
    assert use.plus(use).findings[0].times == 4
