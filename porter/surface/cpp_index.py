"""The C++ files of a source, searched by name.

Nothing is indexed beforehand. A name is looked for in the bytes of the files, and only files that hold it are parsed.
The project's own files come first; folders of third-party code, tests and examples are searched only when the project
itself does not define the name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeVar

from porter.surface.cpp_macros import Macro
from porter.surface.cpp_parse import Name
from porter.surface.cpp_source import CppAlias, CppClass, CppFile, CppFunction, CppValue, Definitions, split_name

SUFFIXES = frozenset({
    ".c", ".cc", ".cpp", ".cxx", ".h", ".hh", ".hpp", ".hxx", ".inl", ".ipp", ".cu", ".cuh", ".hip", ".mm", ".asc",
})  # fmt: skip
FOREIGN = frozenset({
    "3rdparty", "third-party", "third_party", "thirdparty", "external", "extern", "submodules", "vendor", "vendored",
    "deps", "build", "test", "tests", "example", "examples", "benchmark", "benchmarks", "docs", "doc",
})  # fmt: skip
_HIDDEN = frozenset({"__pycache__", "node_modules"})
_BINDING_BYTES = (b"pybind11", b"py::", b"TORCH_LIBRARY", b"torch::class_", b".def")


class _Named(Protocol):
    @property
    def qualified(self) -> Name: ...


_T = TypeVar("_T", bound=_Named)


def _pattern(kind: str, word: str) -> re.Pattern[bytes]:
    """What a file must hold to define a word: far fewer files pass it than hold the word."""
    name = re.escape(word.encode())
    gap = rb"(?:\s|//[^\n]*\n|/\*[^*]*(?:\*(?!/)[^*]*)*\*/)*"
    written = {
        "function": rb"\b" + name + gap + rb"\(",
        "class": rb"\b(?:class|struct|union|enum)\b[^;{}()]{0,200}?\b" + name + rb"\b",
        "alias": rb"\busing\b" + gap + name + gap + rb"=|\btypedef\b[^;]*\b" + name + gap + rb";",
        "value": rb"\b" + name + gap + rb"(?:\[[^\]]*\])?" + gap + rb"[={(]",
    }
    return re.compile(written[kind])


@dataclass(frozen=True)
class Place:
    """Where a name is written: the file (its aliases and using directives count) and the enclosing scope."""

    file: CppFile
    scope: Name = ()
    usings: tuple[Name, ...] = ()


class CppSources:
    """C++ files under a root. ``own`` are the project's, ``foreign`` those of third parties, tests and examples."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._held: dict[tuple[str, str, str], tuple[CppFile, ...]] = {}
        own: list[CppFile] = []
        foreign: list[CppFile] = []
        for folder, names, files in os.walk(root):
            names[:] = sorted(name for name in names if name not in _HIDDEN and not name.startswith("."))
            base = Path(folder)
            relative = base.relative_to(root)
            into = foreign if FOREIGN.intersection(part.lower() for part in relative.parts) else own
            for name in sorted(files):
                if Path(name).suffix.lower() in SUFFIXES:
                    into.append(CppFile(base / name, (relative / name).as_posix()))
        self.own = tuple(sorted(own, key=lambda file: file.name))
        self.foreign = tuple(sorted(foreign, key=lambda file: file.name))

    @property
    def files(self) -> tuple[CppFile, ...]:
        """Every file, the project's own first."""
        return self.own + self.foreign

    @cached_property
    def binding_macros(self) -> dict[bytes, Macro]:
        """Macros of the project that bind names and mean one thing throughout it."""
        bodies: dict[bytes, set[tuple[tuple[bytes, ...] | None, bytes]]] = {}
        macros: dict[bytes, Macro] = {}
        for file in self.own:
            if not any(mark in file.data for mark in _BINDING_BYTES):
                continue
            for macro in file.macros:
                if macro.binds:
                    bodies.setdefault(macro.name, set()).add((macro.parameters, macro.body))
                    macros[macro.name] = macro
        return {name: macro for name, macro in macros.items() if len(bodies[name]) == 1}

    def expanded(self, file: CppFile) -> CppFile:
        """The file, set to expand binding macros that other files define."""
        if not file.shared_macros and "pieces" not in file.__dict__:
            file.shared_macros = self.binding_macros
        return file

    def holding(self, kind: str, word: str, near: CppFile | None = None) -> Iterator[tuple[CppFile, ...]]:
        """Files that may define a word as ``kind``, nearest first.

        The project's own files come before the others; seen from a file in a third party's folder, that folder comes
        first. An alias or a constant is never sought further: a third party's would be another one.
        """
        home = self._home(near) if near is not None else ""
        if home:
            yield self._matching(kind, word, home)
        yield self._matching(kind, word, "")
        if kind in ("function", "class"):
            yield self._matching(kind, word, "*")

    def _around(self, kind: str, word: str, near: CppFile) -> tuple[CppFile, ...]:
        """Files that may define a word in the project or third party that a file belongs to."""
        return self._matching(kind, word, self._home(near))

    def _matching(self, kind: str, word: str, folder: str) -> tuple[CppFile, ...]:
        key = (kind, word, folder)
        if key not in self._held:
            needle, pattern = word.encode(), _pattern(kind, word)
            files = self.own if not folder else self.foreign
            self._held[key] = tuple(
                file
                for file in files
                if (folder in ("", "*") or file.name.startswith(folder))
                and needle in file.data
                and pattern.search(file.data)
            )
        return self._held[key]

    def _home(self, file: CppFile) -> str:
        """Folder of the third party that a file belongs to, "" for one of the project's own."""
        parts = file.name.split("/")[:-1]
        for index, part in enumerate(parts):
            if part.lower() in FOREIGN:
                return "/".join(parts[: index + 2]) + "/"
        return ""

    # -- lookups -------------------------------------------------------------------------------------------------

    def functions(self, name: str, place: Place) -> tuple[CppFunction, ...]:
        """Definitions of a function or method by its name as written at a place.

        A declaration counts where no definition takes as many arguments.
        """
        found = self._find("function", name, place, lambda definitions, word: definitions.functions.get(word, ()))
        defined = {len(one.parameters) for one in found if one.body is not None}
        return tuple(one for one in found if one.body is not None or len(one.parameters) not in defined)

    def declared_static(self, qualified: Name, near: CppFile) -> bool | None:
        """Is this member function static? None where no class declares it."""
        declared = [
            one
            for file in self._around("function", qualified[-1], near)
            for one in file.definitions.functions.get(qualified[-1], ())
            if one.in_class and one.qualified == qualified
        ]
        return any(one.is_static for one in declared) if declared else None

    def classes(self, name: str, place: Place) -> tuple[CppClass, ...]:
        """Definitions of a class or enum, through ``using`` aliases."""
        found = self._find("class", name, place, lambda definitions, word: definitions.classes.get(word, ()))
        if found:
            return found
        for alias in self.aliases(name, place):
            if split_name(alias.type) != split_name(name):
                found = self.classes(alias.type, Place(alias.file, alias.qualified[:-1]))
                if found:
                    return found
        return ()

    def values(self, name: str, place: Place) -> tuple[CppValue, ...]:
        """Variables and constants with an initialiser."""
        return self._find("value", name, place, lambda definitions, word: definitions.values.get(word, ()))

    def aliases(self, name: str, place: Place) -> tuple[CppAlias, ...]:
        """``using`` aliases and typedefs."""
        return self._find("alias", name, place, lambda definitions, word: definitions.aliases.get(word, ()))

    def constructors(self, owner: CppClass) -> tuple[CppFunction, ...]:
        """Constructors of a class, as it declares or defines them."""
        word = owner.qualified[-1]
        wanted = (*owner.qualified, word)
        return tuple(
            one
            for file in self._around("function", word, owner.file)
            for one in file.definitions.functions.get(word, ())
            if one.qualified == wanted
        )

    def _find(
        self,
        kind: str,
        name: str,
        place: Place,
        pick: Callable[[Definitions, str], Sequence[_T]],
        seen: frozenset[Name] = frozenset(),
    ) -> tuple[_T, ...]:
        parts = split_name(name)
        if not parts:
            return ()
        absolute = name.lstrip().startswith("::")
        alias = place.file.definitions.namespace_aliases.get(parts[0])
        if alias is not None:
            parts = alias + parts[1:]
        candidates: list[Name] = []
        scopes = [()] if absolute else [place.scope[:depth] for depth in range(len(place.scope), -1, -1)]
        for scope in scopes:
            candidates.append(scope + parts)
            usings = (*place.file.definitions.usings, *place.usings)
            candidates.extend(scope + using + parts for using in usings if not absolute)
        for tier in self.holding(kind, parts[-1], place.file):
            listed = [one for file in tier for one in pick(file.definitions, parts[-1])]
            if not listed:
                continue
            for candidate in candidates:
                exact = tuple(one for one in listed if one.qualified == candidate)
                if exact:
                    return exact
            if not absolute:
                loose = tuple(one for one in listed if one.qualified[-len(parts) :] == parts)
                if loose and len({one.qualified for one in loose}) == 1:
                    return loose
        if kind == "function" and len(parts) > 1 and parts not in seen:
            return self._inherited(name, place, pick, seen | {parts})
        return ()

    def _inherited(
        self, name: str, place: Place, pick: Callable[[Definitions, str], Sequence[_T]], seen: frozenset[Name]
    ) -> tuple[_T, ...]:
        """A member sought in the class that an alias names, then in the bases."""
        parts = split_name(name)
        for owner in self.classes("::".join(parts[:-1]), place):
            tried = list(owner.bases)
            if owner.qualified[-len(parts) + 1 :] != parts[:-1]:
                tried.insert(0, "::".join(owner.qualified))
            for base in tried:
                inside = Place(owner.file, owner.qualified[:-1])
                found = self._find("function", f"{base}::{parts[-1]}", inside, pick, seen)
                if found:
                    return found
        return ()

    def field(self, name: str, place: Place, seen: frozenset[Name] = frozenset()) -> tuple[str, CppClass] | None:
        """Type of a data member written ``Class::member``, with the class that declares it; bases are searched."""
        parts = split_name(name)
        if len(parts) < 2 or parts in seen:
            return None
        for owner in self.classes("::".join(parts[:-1]), place):
            member = owner.fields.get(parts[-1])
            if member is not None:
                return member.type, owner
            for base in owner.bases:
                found = self.field(f"{base}::{parts[-1]}", Place(owner.file, owner.qualified[:-1]), seen | {parts})
                if found is not None:
                    return found
        return None
