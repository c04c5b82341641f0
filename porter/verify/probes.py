"""Reading an error that a test computes by itself: the value of a local variable when a function returns.

``sys.monitoring`` watches the one code object, so nothing else slows down.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from types import CodeType, ModuleType, TracebackType
from typing import Any

from porter.verify.catalogue import Probe

_TOOL = 4
_NAME = "porter.verify"


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return math.nan


class LocalProbes:
    """Watches functions of one test module. ``report`` receives each value as a float."""

    def __init__(self, report: Callable[[float], None]) -> None:
        self._report = report
        self._watched: dict[CodeType, str] = {}
        self._owned = False

    def _returned(self, code: CodeType, offset: int, value: object) -> None:
        name = self._watched.get(code)
        frame = sys._getframe(1)
        if name is not None and frame.f_code is code and name in frame.f_locals:
            self._report(_number(frame.f_locals[name]))

    def start(self, module: ModuleType, probes: Iterable[Probe]) -> None:
        """Watch ``probes`` of ``module``; one whose function does not exist there is left alone."""
        for probe in probes:
            code = getattr(getattr(module, probe.function, None), "__code__", None)
            if isinstance(code, CodeType):
                self._watched[code] = probe.variable
        if not self._watched or sys.monitoring.get_tool(_TOOL) not in (None, _NAME):
            return
        if sys.monitoring.get_tool(_TOOL) is None:
            sys.monitoring.use_tool_id(_TOOL, _NAME)
        self._owned = True
        sys.monitoring.register_callback(_TOOL, sys.monitoring.events.PY_RETURN, self._returned)
        for code in self._watched:
            sys.monitoring.set_local_events(_TOOL, code, sys.monitoring.events.PY_RETURN)

    def raised(self, traceback: TracebackType | None) -> None:
        """Read the same variables from the frames of an error."""
        while traceback is not None:
            name = self._watched.get(traceback.tb_frame.f_code)
            if name is not None and name in traceback.tb_frame.f_locals:
                self._report(_number(traceback.tb_frame.f_locals[name]))
            traceback = traceback.tb_next

    def stop(self) -> None:
        """Watch nothing."""
        if self._owned:
            for code in self._watched:
                sys.monitoring.set_local_events(_TOOL, code, 0)
            sys.monitoring.free_tool_id(_TOOL)
            self._owned = False
        self._watched.clear()
