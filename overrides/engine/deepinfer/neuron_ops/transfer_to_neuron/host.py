"""Streams and events of the host: work is done when a call returns, so time is the host clock's."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch


class HostEvent:
    """An event that is complete as soon as it is recorded."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        self.enable_timing = enable_timing
        self._time: float | None = None

    def record(self, stream: Any = None) -> None:
        """Take the time."""
        self._time = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Nothing to wait for."""

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """True: there is no unfinished work."""
        return True

    def elapsed_time(self, end_event: HostEvent) -> float:
        """Milliseconds from this event to ``end_event``. Raises RuntimeError unless both were recorded."""
        if self._time is None or end_event._time is None:
            raise RuntimeError("both events must be recorded before their time can be compared")
        return (end_event._time - self._time) * 1e3


class HostStream:
    """A stream in name: the host runs one call after another."""

    cuda_stream = 0

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.device = torch.device("cpu")
        self.priority = priority

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """True: there is no unfinished work."""
        return True

    def wait_stream(self, stream: Any) -> None:
        """Nothing to wait for."""

    def wait_event(self, event: Any) -> None:
        """Nothing to wait for."""

    def record_event(self, event: HostEvent | None = None) -> HostEvent:
        """Record ``event``, or a new one."""
        event = HostEvent() if event is None else event
        event.record(self)
        return event


class StreamContext:
    """``with torch.cuda.stream(s)``: ``s`` is this thread's current stream inside; None changes nothing."""

    def __init__(self, stream: Any, state: CurrentStream) -> None:
        self.stream = stream
        self._state = state
        self._before: Any = None

    def __enter__(self) -> Any:
        self._before = self._state.get()
        if self.stream is not None:
            self._state.set(self.stream)
        return self.stream

    def __exit__(self, *exc: object) -> None:
        self._state.set(self._before)


class CurrentStream(threading.local):
    """Each thread's current stream."""

    def __init__(self, default: HostStream) -> None:
        self._default = default
        self._stream: Any = default

    def get(self) -> Any:
        """The current stream of this thread."""
        return self._stream

    def set(self, stream: Any) -> None:
        """Make ``stream`` current in this thread."""
        self._stream = stream
