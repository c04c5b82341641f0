"""A small linker for tests: describes every function of a folder and resolves its contracts across modules."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import libcst as cst

from porter.surface import flow
from porter.surface.lines import Lines
from porter.surface.model import Contract, Flow
from porter.surface.text import dotted
from porter.surface.tilelang import TilelangFacts, describe
from porter.surface.tilelang_names import imported, small_statements


@dataclass
class File:
    """One module: facts of its functions by qualified name, what it imports."""

    name: str
    tree: cst.Module
    package: bool = False
    facts: dict[str, TilelangFacts | None] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)

    @cached_property
    def line_of(self) -> Lines:
        return Lines(self.tree)


def read(source: str, name: str = "sample") -> File:
    """Describe one module given as text."""
    file = File(name, cst.parse_module(source))
    _fill(file)
    return file


def _fill(file: File) -> None:
    for statement in small_statements(file.tree.body):
        if isinstance(statement, (cst.Import, cst.ImportFrom)):
            file.imports.update(imported(statement))
            if isinstance(statement, cst.ImportFrom) and isinstance(statement.names, cst.ImportStar):
                base = dotted(statement.module) or "" if statement.module is not None else ""
                file.stars.append("." * len(statement.relative) + base)
    for name, function in _functions(file.tree.body, ""):
        file.facts[name] = describe(function, file.tree, file.line_of)


def _functions(body: object, prefix: str) -> Iterator[tuple[str, cst.FunctionDef]]:
    for statement in body:  # type: ignore[attr-defined]
        if isinstance(statement, cst.FunctionDef):
            yield prefix + statement.name.value, statement
        elif isinstance(statement, cst.ClassDef):
            yield from _functions(statement.body.body, f"{prefix}{statement.name.value}.")
        elif isinstance(statement, (cst.If, cst.Try)):
            yield from _functions(statement.body.body, prefix)


class Tree:
    """Modules that see each other."""

    def __init__(self, files: Mapping[str, File]) -> None:
        self.files = files

    @classmethod
    def folder(cls, root: Path, *, errors: dict[str, str] | None = None) -> Tree:
        """Every ``.py`` below ``root``, named from ``root``'s own name on; unreadable ones go to ``errors``."""
        files: dict[str, File] = {}
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root.parent).with_suffix("").parts
            package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if package else parts)
            try:
                file = File(name, cst.parse_module(path.read_bytes()), package)
            except (cst.ParserSyntaxError, UnicodeDecodeError) as error:
                if errors is None:
                    raise
                errors[str(path)] = str(error)
                continue
            _fill(file)
            files[name] = file
        return cls(files)

    @classmethod
    def of(cls, **sources: str) -> Tree:
        """Modules given as text, by name (``__`` stands for a dot)."""
        return cls({name.replace("__", "."): read(source, name.replace("__", ".")) for name, source in sources.items()})

    def lookup(self, module: str, dotted: str, depth: int = 0) -> tuple[str, Flow] | None:
        """What ``flow.resolve`` asks for."""
        file = self.files.get(module)
        if file is None or depth > 12:
            return None
        if dotted.startswith("."):
            home, _, name = self._absolute(file, dotted).rpartition(".")
            return self.lookup(home, name, depth + 1)
        if dotted in file.facts:
            facts = file.facts[dotted]
            return module, (facts.flow if facts is not None else None) or Flow()
        root, _, rest = dotted.partition(".")
        target = file.imports.get(root)
        if target is not None:
            path = self._absolute(file, target) + (f".{rest}" if rest else "")
            home, _, name = path.rpartition(".")
            return self.lookup(home, name, depth + 1)
        if rest:
            home, _, name = dotted.rpartition(".")
            return self.lookup(home, name, depth + 1)
        for star in file.stars:
            found = self.lookup(self._absolute(file, star), dotted, depth + 1)
            if found is not None:
                return found
        return None

    def _absolute(self, file: File, path: str) -> str:
        dots = len(path) - len(path.lstrip("."))
        if not dots:
            return path
        parts = file.name.split(".")
        base = parts if file.package else parts[:-1]
        base = base[: len(base) - dots + 1]
        rest = path[dots:]
        return ".".join([*base, rest] if rest else base)

    def contracts(self) -> Iterator[tuple[str, str, bool, Contract]]:
        """(module, qualified name, is it a factory, resolved contract) of all that has one."""
        for name, file in self.files.items():
            for qualname, facts in file.facts.items():
                if facts is not None and facts.contract is not None:
                    yield name, qualname, facts.factory, flow.resolve(facts.contract, module=name, lookup=self.lookup)

    def contract(self, module: str, name: str) -> Contract:
        """One resolved contract."""
        facts = self.files[module].facts[name]
        assert facts is not None and facts.contract is not None
        return flow.resolve(facts.contract, module=module, lookup=self.lookup)


def kernel_line(contract: Contract) -> str:
    """A contract's kernels on one line: ``name(x, y*)``, ``*`` for written, ``?`` for unknowable."""
    mark = {True: "*", False: "", None: "?"}
    rows = []
    for kernel in contract.kernels:
        arguments = ", ".join(argument.name + mark[argument.written] for argument in kernel.arguments)
        outputs = f" -> {', '.join(argument.name for argument in kernel.outputs)}" if kernel.outputs else ""
        condition = f" if {kernel.condition}" if kernel.condition else ""
        rows.append(f"{kernel.style} {kernel.name}({arguments}){outputs}{condition}")
    return "; ".join(rows)


IMPORTED = "tilelang"


def names_of(tree: ast.Module) -> set[str]:
    """Names that a module binds to TileLang or to something of it, by Python's own reading."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {
                (alias.asname or alias.name).partition(".")[0]
                for alias in node.names
                if alias.name.partition(".")[0] == IMPORTED
            }
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] == IMPORTED:
            found |= {alias.asname or alias.name for alias in node.names}
    return found
