"""Who looks on: strict mode and the cost model are told of every operator and copy here.

A ``Call`` is one operator dispatched to the device. Watchers see it before it runs (and may raise) and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch


@dataclass(slots=True)
class Call:
    """One operator on its way to the device.

    ``name``: ``aten::add``; ``overload``: ``out``; ``base``: the name without namespace, trailing underscore or dunders.
    ``args``, ``kwargs``: as dispatched. ``inputs``: the device tensors among them, those written included. ``written``:
    those that the schema says are written. ``outs``: names of ``out=`` arguments. ``outputs``: what came back, set after it ran.
    """

    name: str
    overload: str
    base: str
    args: Sequence[Any]
    kwargs: dict[str, Any]
    inputs: list[torch.Tensor]
    written: list[torch.Tensor]
    outs: tuple[str, ...] = ()
    outputs: list[torch.Tensor] = field(default_factory=list)

    @property
    def full(self) -> str:
        """``aten::add.out``."""
        return f"{self.name}.{self.overload}" if self.overload else self.name

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)


@dataclass(slots=True)
class Copy:
    """A copy between tensors: ``to-host``, ``to-device`` or ``on-device``."""

    kind: str
    source: torch.Tensor
    target: torch.Tensor


@dataclass(slots=True)
class Launch:
    """A compiled graph that runs as one: its device tensors in and out."""

    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]


@dataclass(slots=True)
class Event:
    """Something other than an operator: a collective, a compiled form, a recompilation. ``code`` as in the table of codes."""

    code: str
    operator: str
    detail: str = ""


class Watcher(Protocol):
    """What looks on."""

    def starts(self, call: Call) -> None: ...
    def ends(self, call: Call) -> None: ...
    def copies(self, copy: Copy) -> None: ...
    def happens(self, event: Event) -> None: ...
    def launches(self, launch: Launch) -> None: ...


WATCHERS: list[Watcher] = []


def tell(event: Event) -> None:
    """Tell every watcher of an event."""
    for watcher in tuple(WATCHERS):
        watcher.happens(event)
