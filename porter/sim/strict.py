"""Strict mode: what would fail, or cost dearly, on the device.

Modes: ``off``; ``record`` keeps every finding; ``raise`` raises ``StrictError`` where it happened. A finding under a
``# NEURON:`` comment of its kind is allowed, and kept as such.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import torch

from porter.sim import callers, rules
from porter.sim.codes import CODES
from porter.sim.errors import StrictError
from porter.sim.operators import read_operators
from porter.sim.rules import Hit
from porter.sim.watchers import Call, Copy, Event, Launch


class Mode(StrEnum):
    """What happens to a finding."""

    OFF = "off"
    RECORD = "record"
    RAISE = "raise"


@dataclass(frozen=True)
class Finding:
    """One thing that the device would not do, or not well.

    ``code`` is explained in the table of codes. ``operator`` as dispatched. ``path``, ``line``, ``function``: the innermost
    line of the user's code; "" and 0 where there is none. ``detail``: types or shapes when it was first met; findings that
    differ in nothing else are one. ``rewrite``: what avoids it.
    ``allowed``: a NEURON comment accepts it, or it is the caller's. ``compiled``: it happened in a compiled graph.
    """

    code: str
    operator: str
    path: str
    line: int
    function: str
    detail: str = field(compare=False)
    rewrite: str
    allowed: bool = False
    compiled: bool = False

    @property
    def title(self) -> str:
        """What the code says."""
        return CODES[self.code].title

    def render(self) -> str:
        """One line for a person."""
        place = f"{self.path}:{self.line}: " if self.path else ""
        detail = f" ({self.detail})" if self.detail else ""
        fix = f"; instead: {self.rewrite}" if self.rewrite else ""
        return f"{place}{self.code} {self.operator}: {self.title}{detail}{fix}"

    def to_dict(self) -> dict[str, str | int | bool]:
        """Plain data."""
        return {
            "code": self.code, "operator": self.operator, "path": self.path, "line": self.line, "function": self.function,
            "title": self.title, "detail": self.detail, "rewrite": self.rewrite, "allowed": self.allowed,
            "compiled": self.compiled,
        }  # fmt: skip


@dataclass
class Strict:
    """A watcher that finds. ``roots``: look only at what happens in code under these folders or files. ``operators``: names
    with a device kernel. ``given``: what the caller passed in, as ``given_of`` sees it; a write that is strided only because
    the caller's tensor is becomes SIM113, which is the caller's to avoid, and allowed. ``found``: finding to how often; ``outside`` counts what happened elsewhere than in ``roots``.
    """

    mode: Mode = Mode.RECORD
    roots: tuple[str, ...] = ()
    operators: frozenset[str] = field(default_factory=read_operators)
    given: dict[int, int] = field(default_factory=dict)
    found: dict[Finding, int] = field(default_factory=dict)
    outside: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Those that no comment allows, in the order of their first appearance."""
        return tuple(finding for finding in self.found if not finding.allowed)

    @property
    def allowed(self) -> tuple[Finding, ...]:
        """Those that a comment allows."""
        return tuple(finding for finding in self.found if finding.allowed)

    def _hit(self, hits: Iterator[Hit]) -> None:
        for hit in hits:
            self._one(hit)

    def _one(self, hit: Hit) -> None:
        place = callers.find(self.roots)
        if place is None:
            if self.roots:
                self.outside += 1
                return
            place = callers.Place()
        number = "SIM113" if self._is_callers(hit) else hit.code
        code = CODES[number]
        allowed = number == "SIM113" or (bool(code.mark) and code.mark in place.marks)
        finding = Finding(
            number, hit.operator, place.path, place.line, place.function, hit.detail, hit.rewrite or code.rewrite, allowed,
            callers.in_graph(),
        )  # fmt: skip
        with self._lock:
            self.found[finding] = self.found.get(finding, 0) + 1
        if self.mode is Mode.RAISE and not allowed:
            raise StrictError(finding.render(), fix=finding.rewrite)

    def _is_callers(self, hit: Hit) -> bool:
        tensor = hit.about
        if tensor is None or not self.given:
            return False
        run = self.given.get(tensor.untyped_storage().data_ptr())
        return run is not None and rules.dense_run(tensor) >= run

    def starts(self, call: Call) -> None:
        """Look at an operator before it runs."""
        if self.mode is not Mode.OFF:
            self._hit(rules.before(call, self.operators))

    def ends(self, call: Call) -> None:
        """Look at what it gave."""
        if self.mode is not Mode.OFF:
            self._hit(rules.after(call))

    def copies(self, copy: Copy) -> None:
        """Look at a copy."""
        if self.mode is not Mode.OFF:
            self._hit(rules.copy(copy))

    def happens(self, event: Event) -> None:
        """Take an event that is a finding."""
        if self.mode is not Mode.OFF and event.code in CODES:
            self._one(Hit(event.code, event.operator, event.detail))

    def launches(self, launch: Launch) -> None:
        """Its operators were seen one by one."""


def given_of(values: Iterable[object]) -> dict[int, int]:
    """Of the strided tensors among a caller's arguments: the memory's address to how many elements lie side by side."""
    found: dict[int, int] = {}
    for value in values:
        if isinstance(value, (list, tuple)):
            found.update(given_of(value))
        elif isinstance(value, torch.Tensor) and rules.is_strided_view(value):
            address, run = value.untyped_storage().data_ptr(), rules.dense_run(value)
            found[address] = min(run, found.get(address, run))
    return found


def roots_of(paths: Sequence[str | Path]) -> tuple[str, ...]:
    """Folders and files as the frames of their code name them."""
    return tuple(f"{Path(path).resolve()}/" if Path(path).is_dir() else str(Path(path).resolve()) for path in paths)
