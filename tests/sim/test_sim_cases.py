"""The device is registered with torch once and for all, so every file of cases/ runs in a process of its own: it passes,
and the process ends by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.sim_process import run

PLUGIN = "tests.sim.cases.installed_device"
CASES = sorted((Path(__file__).parent / "cases").glob("case_*.py"))


def test_there_are_cases() -> None:
    assert len(CASES) >= 4


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case_file(path: Path) -> None:
    done = run(
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        PLUGIN,
        "-o",
        "python_files=case_*.py",
        "--no-header",
        str(path),
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout
