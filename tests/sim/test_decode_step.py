"""What a decode step calls of the vendor packages shows no strict finding that no NEURON comment allows."""

from __future__ import annotations

import json

import pytest

from tests.sim.sim_process import run

PACKAGES = ("deep_gemm", "flash_mla", "deep_select", "tile_kernels", "deep_ep")


@pytest.fixture(scope="module")
def report() -> dict[str, dict[str, dict[str, object]]]:
    """Findings and costs by package and call: one process for all, most of which is imports."""
    done = run("-m", "tests.sim.vendor.decode_step", *PACKAGES, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)["packages"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_finding_in_a_decode_step(report: dict[str, dict[str, dict[str, object]]], package: str) -> None:
    calls = report[package]
    assert len(calls) >= 3
    found = {
        f"{one['path']}:{one['line']}: {one['code']} {one['operator']} {one['detail']}; instead: {one['rewrite']} ({name})"
        for name, call in calls.items()
        for one in call["findings"]  # type: ignore[attr-defined]
    }
    assert not found, "\n".join(sorted(found))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_call_ran_on_the_device(report: dict[str, dict[str, dict[str, object]]], package: str) -> None:
    for name, call in report[package].items():
        cost = call["cost"]
        assert isinstance(cost, dict) and cost["operators"] >= 1, name
        for one in call["allowed"]:  # type: ignore[attr-defined]
            assert one["path"].startswith("overrides/"), "lines are the overrides'"
