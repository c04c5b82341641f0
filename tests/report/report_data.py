"""A small page with everything on it: hostile names, every state, results of both kinds, drift."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from porter.drift import Change, ChangeKind, Extract
from porter.findings import Finding
from porter.report.page import NameRow, Page
from porter.report.results import Results, parse_results

HOSTILE = "</script><img src=x onerror=alert(1)>&\"'"


def finding(code: str, line: int, allowed: bool = False) -> dict[str, Any]:
    """A strict finding as JSON holds it."""
    return {
        "code": code, "operator": "aten::sort", "path": "overrides/tilelang_ops/norm.py", "line": line, "function": "norm",
        "title": "no device kernel", "detail": HOSTILE, "rewrite": "topk", "allowed": allowed, "compiled": False, "times": 3,
    }  # fmt: skip


def results_json(simulated: bool = False) -> dict[str, Any]:
    """What ``porter verify --json`` writes, cut short."""
    device = {
        "calls": 4, "operators_a_call": 12.5, "round_trips_a_call": 1.0, "bytes_a_call": 2048, "estimated_us_a_call": 2350.5,
        "worst_us": 4000.0, "findings": [finding("SIM104", 12), finding("SIM107", 9)], "allowed": [finding("SIM101", 3, True)],
    }  # fmt: skip
    row = {
        "factory": "norm_tl", "passed": 9, "failed": 1, "skipped": 2, "left_out": 0, "over": 0, "calls": 40,
        "error": "1.5e-03", "simulated": device if simulated else None,
    }  # fmt: skip
    exact = {**row, "factory": "gather_tl", "passed": 100, "failed": 0, "error": "exact", "simulated": None}
    if simulated:
        exact["simulated"] = {**device, "operators_a_call": 3, "findings": [], "allowed": []}
    environment: dict[str, Any] = {"torch": "2.14.0"}
    if simulated:
        environment["simulation"] = {"estimate": "estimate from published constants, not measured", "rates": {}}
    return {
        "version": 1, "flavour": "npu", "device": "neuron" if simulated else "cpu", "simulated": simulated, "full": False,
        "environment": environment, "counts": {"passed": 109, "failed": 1, "skipped": 4, "over cap": 0},
        "factories": [row, exact],
        "findings": [{"code": "PV001", "path": "a.py", "line": 3, "message": f"failed {HOSTILE}"}],
    }  # fmt: skip


def results(simulated: bool = False) -> Results:
    """The same, read."""
    return parse_results(results_json(simulated), "sim.json" if simulated else "cpu.json")


def page(*, measured: bool = True, compared: bool = True) -> Page:
    """The page."""
    tests, device = (results(), results(True)) if measured else (None, None)
    asc = "deepinfer/model_executor/layers/tilelang_ops/asc"
    plain = NameRow(
        "norm_tl", "factories", True, "implemented", True, "override", "", "tilelang_ops.asc", f"{asc}/norm.py:31",
        "generated/norm.py", "overrides/norm.py", tests.tests["norm_tl"] if tests else None,
        device.costs["norm_tl"] if device else None,
    )  # fmt: skip
    rows = (
        replace(
            plain, name="gather_tl", stale=False, upstream=f"{asc}/gather.py:7",
            tests=tests.tests["gather_tl"] if tests else None, device=device.costs["gather_tl"] if device else None,
        ),
        plain,
        replace(plain, name="mtp_tl", state="excluded", stale=False, by="mtp", reason=HOSTILE, override="", tests=None, device=None),
        replace(plain, name=f"deep_gemm.{HOSTILE}", group="deep_gemm", state="pending", stale=False, tests=None, device=None),
        replace(plain, name="tilelang.unused", group="tilelang", used=False, stale=False, tests=None, device=None),
    )  # fmt: skip
    change = Change(
        "norm_tl", "tilelang_ops.asc", ChangeKind.SIGNATURE, Extract("(a)"), Extract(f"(a, b={HOSTILE})"), "norm.py", 31
    )
    total = {"total": 3, "implemented": 2, "excluded": 1, "pending": 0, "stale": 1}
    return Page(
        rows=rows,
        totals=(("factories", total), ("deep_gemm", total)),
        sources=(("deepinfer", "0.1.0", "0123456789abcdef"),),
        used=(1, 2),
        check=(Finding("PT021", "stale", symbol="norm_tl", path="overrides/norm.py", line=4, fix="porter ack norm_tl"),),
        changes=(change,) if compared else None,
        compared="the releases that porter.toml pins" if compared else "no source in the cache",
        tests=tests,
        device=device,
    )  # fmt: skip
