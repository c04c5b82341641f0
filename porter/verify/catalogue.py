"""What upstream's tests are known to do: which factories each calls, and which cases skip on which platform.

The catalogue is data beside this module (``catalogue.toml``); it is checked against what the tests do whenever they run.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from porter.verify.errors import CatalogueError

FLAVOURS = ("npu", "gpu")


@dataclass(frozen=True)
class Probe:
    """A local variable that holds an error which a test compares by itself.

    ``function``: module-level function of the test's file; ``variable``: its local's name when the function returns.
    """

    function: str
    variable: str


@dataclass(frozen=True)
class TestEntry:
    """One test function. ``name`` is ``<file stem>::<function>``; ``factories`` in order of importance, the judged one
    first; ``sometimes`` are called by some of its cases only. ``uncounted``: comparison functions (``allclose``, ...)
    that it does not use against a reference of the kernel, so that their differences say nothing of it. ``memory`` (bytes) and ``seconds`` are caps of its own.
    """

    name: str
    factories: tuple[str, ...] = ()
    sometimes: tuple[str, ...] = ()
    probes: tuple[Probe, ...] = ()
    uncounted: tuple[str, ...] = ()
    memory: int | None = None
    seconds: float | None = None

    @property
    def all_factories(self) -> tuple[str, ...]:
        """Every factory that the test may call."""
        return self.factories + self.sometimes


@dataclass(frozen=True)
class KnownSkip:
    """Cases that upstream itself skips: ``case`` is a regular expression over the parameter id, matched in full."""

    flavour: str
    test: str
    case: str
    cases: int
    reason: str

    def covers(self, flavour: str, test: str, case: str) -> bool:
        """Does this entry name that case?"""
        return self.flavour == flavour and self.test == test and re.fullmatch(self.case, case) is not None


@dataclass(frozen=True)
class Catalogue:
    """All entries, by test name, the known skips, and how many seconds each file took (for sharing work out)."""

    tests: Mapping[str, TestEntry] = field(default_factory=dict)
    skips: tuple[KnownSkip, ...] = ()
    weights: Mapping[str, float] = field(default_factory=dict)

    @property
    def factories(self) -> tuple[str, ...]:
        """Every factory that some test calls, sorted."""
        return tuple(sorted({name for entry in self.tests.values() for name in entry.all_factories}))

    def skip_for(self, flavour: str, test: str, case: str) -> KnownSkip | None:
        """The entry that names this skip, or None."""
        return next((skip for skip in self.skips if skip.covers(flavour, test, case)), None)


def _take(table: Mapping[str, Any], known: Iterable[str], where: str, path: str) -> Mapping[str, Any]:
    extra = sorted(set(table) - set(known))
    if extra:
        raise CatalogueError(
            f"{where}: unknown key {extra[0]!r}", path=path, fix=f"known keys: {', '.join(sorted(known))}"
        )
    return table


def parse_catalogue(text: str, path: str = "catalogue.toml") -> Catalogue:
    """Read a catalogue.

    Raises:
        CatalogueError: not TOML, an unknown key, a test named twice, a flavour that does not exist, a bad pattern.
    """
    try:
        data = tomllib.loads(text)
        _take(data, ("test", "skip", "weights"), "catalogue", path)
        tests: dict[str, TestEntry] = {}
        for row in data.get("test", []):
            _take(
                row,
                ("name", "factories", "sometimes", "probes", "uncounted", "memory_mib", "seconds"),
                f"test {row.get('name')!r}",
                path,
            )
            if row["name"] in tests:
                raise CatalogueError(f"test {row['name']!r} is named twice", path=path)
            tests[row["name"]] = TestEntry(
                name=row["name"],
                factories=tuple(row.get("factories", ())),
                sometimes=tuple(row.get("sometimes", ())),
                probes=tuple(Probe(probe["function"], probe["variable"]) for probe in row.get("probes", ())),
                uncounted=tuple(row.get("uncounted", ())),
                memory=row["memory_mib"] << 20 if "memory_mib" in row else None,
                seconds=float(row["seconds"]) if "seconds" in row else None,
            )
        skips: list[KnownSkip] = []
        for row in data.get("skip", []):
            _take(row, ("flavour", "test", "case", "cases", "reason"), f"skip of {row.get('test')!r}", path)
            re.compile(row["case"])
            if row["flavour"] not in FLAVOURS or row["test"] not in tests:
                raise CatalogueError(f"skip of {row['test']!r}: no such test or flavour {row['flavour']!r}", path=path)
            skips.append(KnownSkip(row["flavour"], row["test"], row["case"], int(row["cases"]), row["reason"]))
        weights = {str(name): float(seconds) for name, seconds in data.get("weights", {}).items()}
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError, re.error) as error:
        raise CatalogueError(f"cannot be read: {error!r}", path=path) from error
    return Catalogue(tests, tuple(skips), weights)


def load_catalogue(path: Path | None = None) -> Catalogue:
    """The catalogue that ships with porter, or the one at ``path``."""
    if path is None:
        text = resources.files("porter.verify").joinpath("catalogue.toml").read_text(encoding="utf-8")
        return parse_catalogue(text, "porter/verify/catalogue.toml")
    return parse_catalogue(path.read_text(encoding="utf-8"), str(path))
