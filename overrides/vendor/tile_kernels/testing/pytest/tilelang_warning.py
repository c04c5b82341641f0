"""Warnings of the TileLang compiler at the end of a run, as ``tile_kernels.testing.pytest.tilelang_warning`` shows them.

Nothing here compiles with TileLang; a test that runs it all the same is listed.
"""

from __future__ import annotations

import re

_PATTERN = re.compile(r"\[TileLang:[^\]]*:WARN(?:ING)?\].*|: Warning:.*", re.IGNORECASE)
_by_test: dict[str, list[str]] = {}


def pytest_runtest_logreport(report):
    """Keep the warnings that a test's call printed, each once."""
    if report.when != "call":
        return
    seen: dict[str, str] = {}
    for text in (report.capstdout, report.capstderr):
        for line in (text or "").splitlines():
            found = _PATTERN.search(line)
            if found is not None:
                # The text after the time tells warnings apart.
                seen.setdefault(found.group(0), line)
    if seen:
        _by_test.setdefault(report.nodeid, []).extend(seen.values())


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    """Print what was kept."""
    if not _by_test:
        return
    terminalreporter.write_sep("=", "TileLang warnings", yellow=True)
    for test, lines in _by_test.items():
        terminalreporter.write_line(test, yellow=True)
        for line in lines:
            terminalreporter.write_line(f"  {line}", yellow=True)
    terminalreporter.write_line(f"{sum(map(len, _by_test.values()))} warnings in {len(_by_test)} tests", yellow=True)
