"""Memory and time caps around one test case.

Memory: the soft RLIMIT_DATA is set to what the process holds plus the cap, so that an allocation over it is a clean
error that names its size. Time: processor time, so that a busy machine changes no verdict; SIGPROF raises in the main
thread, a single long call into native code ends first.
"""

from __future__ import annotations

import re
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

_ALLOCATION = re.compile(r"tried to allocate (\d+) bytes")


class TimeCapExceeded(Exception):
    """A case ran longer than its cap."""


@dataclass(frozen=True)
class Caps:
    """``memory``: bytes that a case may add to the process; ``seconds``: processor time that it may take, of all threads.
    None: no cap."""

    memory: int | None = None
    seconds: float | None = None


def memory_cap_available() -> bool:
    """RLIMIT_DATA covers anonymous mappings on Linux only."""
    return sys.platform == "linux"


def _status_bytes(key: str) -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(key + ":"):
                return int(line.split()[1]) << 10
    return 0


def reset_peak() -> None:
    """Start a new peak measurement (Linux; elsewhere nothing happens)."""
    try:
        with open("/proc/self/clear_refs", "w", encoding="ascii") as refs:
            refs.write("5")
    except OSError:
        pass


def resident_peak() -> int:
    """Largest resident size since ``reset_peak`` in bytes, 0 where it cannot be told."""
    try:
        return _status_bytes("VmHWM")
    except OSError:
        return 0


@dataclass
class CaseLimits:
    """Caps in force during a ``with`` block over ``apply``; ``headroom`` lends the harness memory of its own."""

    caps: Caps
    _limit: int | None = field(default=None, init=False)

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Put the caps in force. Raises ``TimeCapExceeded`` inside the block."""
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if self.caps.memory is not None and memory_cap_available():
            self._limit = _status_bytes("VmData") + self.caps.memory
            if hard != resource.RLIM_INFINITY:
                self._limit = min(self._limit, hard)
            resource.setrlimit(resource.RLIMIT_DATA, (self._limit, hard))

        def expire(signum: int, frame: FrameType | None) -> None:
            raise TimeCapExceeded(f"the case took more than {self.caps.seconds:g} s of processor time")

        previous = signal.signal(signal.SIGPROF, expire) if self.caps.seconds is not None else None
        if self.caps.seconds is not None:
            signal.setitimer(signal.ITIMER_PROF, self.caps.seconds)
        try:
            yield
        finally:
            if self.caps.seconds is not None:
                signal.setitimer(signal.ITIMER_PROF, 0)
                signal.signal(signal.SIGPROF, previous)
            if self._limit is not None:
                self._limit = None
                resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

    @contextmanager
    def headroom(self, size: int) -> Iterator[None]:
        """Raise the memory cap by ``size`` bytes while the harness holds copies of its own."""
        if self._limit is None or size == 0:
            yield
            return
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)

        def move(by: int) -> None:
            if self._limit is not None:
                self._limit += by
                resource.setrlimit(resource.RLIMIT_DATA, (self._limit, hard))

        move(size)
        try:
            yield
        finally:
            move(-size)


def cap_exceeded(error: BaseException, caps: Caps, peak: int) -> str:
    """The cap that this error reports, as a text with the case's size; "" when it is another error.

    ``peak``: bytes that the process had grown by when the error came.
    """
    if isinstance(error, TimeCapExceeded):
        return f"over {caps.seconds:g} s of processor time, with {peak / (1 << 20):,.0f} MiB"
    if caps.memory is None:
        return ""
    match = _ALLOCATION.search(str(error)) if isinstance(error, RuntimeError) else None
    if match is not None:
        return f"needs {int(match[1]) / (1 << 20):,.0f} MiB in one tensor, over {caps.memory >> 20} MiB in all"
    if isinstance(error, MemoryError):
        return f"over {caps.memory >> 20} MiB, with {peak / (1 << 20):,.0f} MiB held"
    return ""
