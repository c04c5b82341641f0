"""The upstream text behind a symbol: its definition and every definition of its source that it refers to.

What ``Bodies`` digests, as text that a person can compare. Kept out of the project: it is upstream's own.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from porter.config import ENGINE
from porter.surface.backend import LAYERS
from porter.surface.bodies import Bodies, binding_table, members_of
from porter.surface.model import BindingFacts, ClassFacts, Fact, ModuleFacts, Symbol
from porter.surface.namespace import LoadedModule, Program


def excerpts(
    source: str,
    root: Path,
    facts: Mapping[str, ModuleFacts],
    bindings: Mapping[str, Sequence[BindingFacts]],
    symbols: Sequence[Symbol],
) -> Mapping[str, str]:
    """Text by symbol id, for the symbols that are found: definition first, then what it refers to, by file and line.

    Parameters:
        root: folder that the paths of ``facts`` and ``bindings`` are relative to.
        bindings: C++ names by extension module; one of these is shown as the file that binds it.
    """
    program = Program(source, facts, extensions=bindings.keys())
    table = binding_table(bindings)
    bodies = Bodies(program, table)
    texts = _Texts(root)
    found: dict[str, str] = {}
    for symbol in symbols:
        module = program.modules.get((LAYERS if source == ENGINE else "") + symbol.module)
        fact = _fact(module, symbol, bodies) if module is not None else None
        if fact is not None:
            found[symbol.id] = "\n".join(_sections(fact, bodies, program, texts))
        elif (binding := table.get(f"{symbol.module}.{symbol.qualname}")) is not None and binding.path:
            found[symbol.id] = f"# {binding.path}\n{texts.whole(binding.path)}"
    return found


def _fact(module: LoadedModule, symbol: Symbol, bodies: Bodies) -> Fact | None:
    """The definition whose body the symbol's digest is; a module may define a name several times."""
    facts: Sequence[Fact] = module.facts.definitions
    for name in symbol.qualname.split("."):
        named = [fact for fact in facts if fact.name == name]
        exact = [fact for fact in named if bodies.body(fact) == symbol.body] or named
        if not exact:
            return None
        fact = exact[-1]
        facts = members_of(fact) if isinstance(fact, ClassFacts) else ()
    return fact


def _sections(fact: Fact, bodies: Bodies, program: Program, texts: _Texts) -> Iterator[str]:
    first, *others = bodies.closure(fact)
    for module, one in [first, *sorted(others, key=lambda row: (program.modules[row[0]].path, row[1].line))]:
        path = program.modules[module].path
        yield f"# {path}: {one.name}\n{texts.definition(path, one.name, one.line)}"


class _Texts:
    """Definitions cut out of files, each file read and parsed once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lines = cache(self._read)
        self._spans = cache(self._parse)

    def whole(self, path: str) -> str:
        """A file's text, "" when it is gone."""
        return "".join(self._lines(path))

    def definition(self, path: str, name: str, line: int) -> str:
        """Text of the definition of ``name`` at ``line``, decorators and all; the line alone when Python cannot parse the file."""
        lines = self._lines(path)
        start, end = self._spans(path).get((name, line), (line, line))
        return "".join(lines[start - 1 : end])

    def _read(self, path: str) -> list[str]:
        try:
            return (self._root / path).read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        except OSError:
            return []

    def _parse(self, path: str) -> Mapping[tuple[str, int], tuple[int, int]]:
        try:
            tree = ast.parse(self.whole(path))
        except (SyntaxError, ValueError, RecursionError):
            return {}
        spans: dict[tuple[str, int], tuple[int, int]] = {}
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                start = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                spans[node.name, node.lineno] = (start, node.end_lineno or node.lineno)
            elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for name in (one for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)):
                    spans[name.id, node.lineno] = (node.lineno, node.end_lineno or node.lineno)
        return spans
