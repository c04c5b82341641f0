"""Size constants of upstream's tests, made small enough for a machine without an accelerator.

Every parametrised case stays; only numbers change. A substitution names a scope (a module-level assignment, or a
function with its decorators and defaults), the number expected there, how often, and the number to put in its place.
It is applied to a throw-away copy, by position in the parsed file, so no upstream text is kept here. One that does not
find exactly what it expects is an error: upstream moved, and somebody has to look.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from itertools import groupby
from pathlib import Path

from porter.verify.errors import CatalogueError, ShrinkError


@dataclass(frozen=True)
class Shrink:
    """In ``file``, inside ``scope``, the integer ``old`` stands exactly ``count`` times and becomes ``new``.

    ``name`` narrows the match to the value bound to that keyword, parameter or variable. ``keeps`` says which branches
    the smaller size still reaches.
    """

    file: str
    scope: str
    old: int
    new: int
    count: int = 1
    name: str = ""
    keeps: str = ""


def parse_shrinks(text: str, path: str = "shrink.toml") -> tuple[Shrink, ...]:
    """Read a table of substitutions.

    Raises:
        CatalogueError: not TOML, or an entry with a missing or unknown field.
    """
    try:
        return tuple(Shrink(**row) for row in tomllib.loads(text).get("shrink", []))
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise CatalogueError(f"cannot be read: {error}", path=path) from error


def load_shrinks(path: Path | None = None) -> tuple[Shrink, ...]:
    """The table that ships with porter, or the one at ``path``."""
    if path is None:
        text = resources.files("porter.verify").joinpath("shrink.toml").read_text(encoding="utf-8")
        return parse_shrinks(text, "porter/verify/shrink.toml")
    return parse_shrinks(path.read_text(encoding="utf-8"), str(path))


def _scopes(tree: ast.Module, scope: str) -> list[ast.AST]:
    found: list[ast.AST] = []
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names = [name]
            case ast.Assign(targets=targets):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.AugAssign(target=ast.Name(id=name)):
                names = [name]
            case _:
                names = []
        if scope in names:
            found.append(node)
    return found


def _bound_values(root: ast.AST, name: str) -> list[ast.AST]:
    """Values bound to ``name`` under ``root``: keyword arguments, parameter defaults, assignments."""
    values: list[ast.AST] = []
    for node in ast.walk(root):
        match node:
            case ast.keyword(arg=arg, value=value) if arg == name:
                values.append(value)
            case ast.Assign(targets=[ast.Name(id=bound)], value=value) if bound == name:
                values.append(value)
            case ast.AnnAssign(target=ast.Name(id=bound), value=ast.AST() as value) if bound == name:
                values.append(value)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=elements)):
                pairs = zip(targets, elements, strict=False)
                values += [element for target, element in pairs if isinstance(target, ast.Name) and target.id == name]
            case ast.arguments():
                positional = node.posonlyargs + node.args
                given = positional[len(positional) - len(node.defaults) :]
                values += [value for arg, value in zip(given, node.defaults, strict=True) if arg.arg == name]
                keywords = zip(node.kwonlyargs, node.kw_defaults, strict=True)
                values += [value for arg, value in keywords if arg.arg == name and value is not None]
            case ast.Call(func=ast.Attribute(attr="parametrize"), args=[ast.Constant(value=bound), value, *_]) if (
                bound == name
            ):
                values.append(value)
    return values


def _literals(roots: Iterable[ast.AST], number: int) -> list[ast.Constant]:
    nodes = {
        (node.lineno, node.col_offset): node
        for root in roots
        for node in ast.walk(root)
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value == number
    }
    return [nodes[position] for position in sorted(nodes)]


def shrink_text(text: str, shrinks: Iterable[Shrink], path: str) -> str:
    """``text`` with all ``shrinks`` (of this one file) applied.

    Raises:
        ShrinkError: the file does not parse, a scope is missing, or the number stands there another number of times.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ShrinkError(f"cannot be parsed: {error.msg}", path=path, line=error.lineno) from error
    edits: dict[tuple[int, int], tuple[int, int]] = {}
    for shrink in shrinks:
        scopes = _scopes(tree, shrink.scope)
        fix = "look at what upstream changed, then correct porter/verify/shrink.toml"
        if not scopes:
            raise ShrinkError(f"no module-level {shrink.scope!r} to shrink", path=path, fix=fix)
        roots = [value for scope in scopes for value in _bound_values(scope, shrink.name)] if shrink.name else scopes
        nodes = _literals(roots, shrink.old)
        if len(nodes) != shrink.count:
            place = f"{shrink.scope}, {shrink.name}" if shrink.name else shrink.scope
            raise ShrinkError(
                f"{place}: the number {shrink.old} stands here {len(nodes)} times, expected {shrink.count}",
                path=path,
                line=getattr(scopes[0], "lineno", None),
                fix=fix,
            )
        for node in nodes:
            if node.end_col_offset is None:
                raise ShrinkError(f"{shrink.scope}: a number without an end", path=path, line=node.lineno)
            edits[node.lineno, node.col_offset] = (node.end_col_offset, shrink.new)
    lines = text.encode().split(b"\n")
    for (line, start), (end, new) in sorted(edits.items(), reverse=True):
        row = lines[line - 1]
        lines[line - 1] = row[:start] + str(new).encode() + row[end:]
    return b"\n".join(lines).decode()


def shrink_folder(folder: Path, shrinks: Iterable[Shrink]) -> tuple[str, ...]:
    """Apply ``shrinks`` to the files in ``folder`` (upstream's interface modules), in place. Gives the names changed.

    Raises:
        ShrinkError: as ``shrink_text``; also a file that is not there. Nothing is written when one fails.
    """
    texts: dict[Path, str] = {}
    for file, group in groupby(sorted(shrinks, key=lambda shrink: shrink.file), key=lambda shrink: shrink.file):
        path = folder / file
        if not path.is_file():
            raise ShrinkError(
                "this file is to be shrunk and does not exist", path=file, fix="correct porter/verify/shrink.toml"
            )
        texts[path] = shrink_text(path.read_text(encoding="utf-8"), group, file)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return tuple(path.name for path in texts)
