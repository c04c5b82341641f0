"""Progress of long work: bars on a terminal, nothing in a pipe.

``Progress`` is a protocol, so that a caller can pass its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Literal, Protocol, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

Unit = Literal["bytes", "items"]


class Task(Protocol):
    """One piece of long work under way."""

    def advance(self, amount: int) -> None:
        """Say that ``amount`` more units are done."""

    def resize(self, total: int | None) -> None:
        """Say how many units there are, once that is known."""


class Progress(Protocol):
    """Something that shows tasks."""

    def task(self, label: str, total: int | None = None, unit: Unit = "items") -> AbstractContextManager[Task]:
        """Show a task while the context lasts. ``total`` is None where it is unknown."""


class _Silent:
    def advance(self, amount: int) -> None:
        pass

    def resize(self, total: int | None) -> None:
        pass


class QuietProgress:
    """Shows nothing."""

    @contextmanager
    def task(self, label: str, total: int | None = None, unit: Unit = "items") -> Iterator[Task]:
        yield _Silent()


class TerminalProgress:
    """Bars on a terminal, gone when their work is done, so that only results remain on the screen."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._bars: Bars | None = None
        self._depth = 0

    @contextmanager
    def task(self, label: str, total: int | None = None, unit: Unit = "items") -> Iterator[Task]:
        bars = self._bars or self._open()
        self._bars = bars
        self._depth += 1
        task = _Bar(bars, label, total, unit)
        try:
            if self._depth == 1:
                bars.start()
            yield task
        finally:
            task.close()
            self._depth -= 1
            if self._depth == 0:
                bars.stop()
                self._bars = None

    def _open(self) -> Bars:
        # rich takes a moment to import and most runs show nothing.
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        return Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[done]}", markup=False),
            TimeElapsedColumn(),
            console=Console(file=self._stream),
            transient=True,
        )


class _Bar:
    def __init__(self, bars: Bars, label: str, total: int | None, unit: Unit) -> None:
        self._bars = bars
        self._total = total
        self._unit = unit
        self._done = 0
        self._id = bars.add_task(label, total=total, done=self._text())

    def advance(self, amount: int) -> None:
        self._done += amount
        self._bars.update(self._id, advance=amount, done=self._text())

    def resize(self, total: int | None) -> None:
        self._total = total
        self._bars.update(self._id, total=total, done=self._text())

    def close(self) -> None:
        self._bars.remove_task(self._id)

    def _text(self) -> str:
        if self._unit == "bytes":
            done, total = (f"{n / 1e6:.1f}" if n is not None else "" for n in (self._done, self._total))
            return f"{done}/{total} MB" if total else f"{done} MB"
        return f"{self._done}/{self._total}" if self._total is not None else str(self._done)


def progress_for(stream: TextIO | None = None) -> Progress:
    """Bars where ``stream`` (standard error) is a terminal, silence elsewhere."""
    stream = stream if stream is not None else sys.stderr
    return TerminalProgress(stream) if stream.isatty() else QuietProgress()
