"""An early end for parallel runs, as ``tile_kernels.testing.pytest.xdist_failfast`` makes it for ``pytest -n ... -x``."""

from __future__ import annotations

import os
import signal
import threading

import pytest

# A teardown that hangs holds the interruption up no longer than this (seconds).
_GRACE = 10.0
_NAME = "tk_xdist_failfast"


def pytest_configure(config):
    """With workers and ``-x``, interrupt the run after the first failed test's teardown."""
    if getattr(config.option, "maxfail", 0) != 1 or not getattr(config.option, "numprocesses", None):
        return
    if hasattr(config.option, "maxworkerrestart"):
        config.option.maxworkerrestart = 0
    if not hasattr(config, "workerinput") and not config.pluginmanager.has_plugin(_NAME):
        config.pluginmanager.register(_Interrupter(), _NAME)


class _Interrupter:
    """Sends this process an interrupt, once."""

    def __init__(self) -> None:
        self.failed = ""
        self._done = False
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report):
        """Interrupt after the failed test's teardown, or at once when its worker died."""
        if self._done:
            return
        if report.failed and report.when not in ("setup", "call", "teardown"):
            self._interrupt()
            return
        if report.failed and not self.failed:
            self.failed = report.nodeid
            self._timer = threading.Timer(_GRACE, self._interrupt)
            self._timer.daemon = True
            self._timer.start()
        if self.failed and report.when == "teardown" and report.nodeid == self.failed:
            self._interrupt()

    def _interrupt(self) -> None:
        if self._finish():
            os.kill(os.getpid(), signal.SIGINT)

    def _finish(self) -> bool:
        with self._lock:
            first, self._done = not self._done, True
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        return first

    def pytest_sessionfinish(self, session, exitstatus):
        """Let no timer outlive the session."""
        self._finish()

    def pytest_terminal_summary(self, terminalreporter, config):
        """Name the test that ended the run."""
        if self.failed:
            terminalreporter.section("The run was interrupted by the failure of")
            terminalreporter.write_line(self.failed)
