"""Streams and events. Work is done when the call returns, so order holds by itself; events keep the time."""

from __future__ import annotations

import itertools
import threading
import time
from types import TracebackType
from typing import Any

import torch

from porter.sim.errors import SimError
from porter.sim.names import NAME

_numbers = itertools.count(1)
_state = threading.local()


class Event:
    """A point in time on a stream. ``elapsed_time`` is in milliseconds of the host's clock."""

    def __init__(
        self, device: Any = None, *, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        if interprocess:
            raise SimError("events are not shared between processes", fix="use a barrier of torch.distributed")
        self.enable_timing = enable_timing
        self.blocking = blocking
        self.device = torch.device(NAME, 0)
        self._time: float | None = None

    def record(self, stream: Any = None) -> None:
        """Take the time."""
        self._time = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """Is the work before the event done? It is."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds between two recorded events.

        Raises:
            SimError: an event was not recorded, or does not keep the time.
        """
        if not self.enable_timing or not end_event.enable_timing:
            raise SimError("both events must be made with enable_timing=True", fix="Event(enable_timing=True)")
        if self._time is None or end_event._time is None:
            raise SimError("both events must be recorded before elapsed_time", fix="call event.record()")
        return (end_event._time - self._time) * 1e3


class Stream:
    """A queue of work. ``stream_id`` 0 is the default stream."""

    def __init__(self, device: Any = None, priority: int = 0, *, stream_id: int | None = None) -> None:
        index = device if isinstance(device, int) else (torch.device(device).index or 0) if device is not None else 0
        self.device = torch.device(NAME, index)
        self.device_index = index
        self.device_type = 20
        self.priority = priority
        self.stream_id = next(_numbers) if stream_id is None else stream_id
        self._previous: list[Stream] = []

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """Is all work done? It is."""
        return True

    def wait_stream(self, stream: Any) -> None:
        """Nothing to wait for."""

    def wait_event(self, event: Any) -> None:
        """Nothing to wait for."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event here, a new one by default."""
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        self._previous.append(current_stream())
        set_stream(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        set_stream(self._previous.pop())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (other.stream_id, other.device) == (self.stream_id, self.device)

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device_index))

    def __repr__(self) -> str:
        return f"<torch.neuron.Stream device={self.device} stream_id={self.stream_id}>"


class StreamContext:
    """``with torch.neuron.stream(s)``; None leaves the stream as it is."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> Stream | None:
        return None if self.stream is None else self.stream.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.stream is not None:
            self.stream.__exit__(kind, value, trace)


def default_stream(device: Any = None) -> Stream:
    """The stream that work goes to when nobody chose."""
    return Stream(device, stream_id=0)


def current_stream(device: Any = None) -> Stream:
    """The stream that this thread's work goes to."""
    chosen: Stream | None = getattr(_state, "stream", None)
    return default_stream(device) if chosen is None else chosen


def set_stream(stream: Any) -> None:
    """Choose this thread's stream."""
    _state.stream = stream
