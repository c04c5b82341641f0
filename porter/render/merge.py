"""Taking from an override file what an emitted module needs: bodies, and whatever they use. Per symbol, never per file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import libcst as cst

from porter.errors import OverrideError


@dataclass(frozen=True)
class Merged:
    """The parts of an override that go into an emitted module: its docstring, import statements and definitions, as text."""

    docstring: str
    imports: tuple[str, ...]
    definitions: tuple[str, ...]


@dataclass(frozen=True)
class _Statement:
    node: cst.CSTNode
    binds: tuple[str, ...]
    uses: frozenset[str]
    is_import: bool = False


def merge(path: str, data: bytes, wanted: Collection[str], members: Mapping[str, str]) -> Merged:
    """Take ``wanted`` top-level names out of an override file, with everything they use.

    Parameters:
        path: the file as the user knows it, for errors.
        data: its bytes.
        wanted: top-level names to emit.
        members: per class name, text of methods to add to that class (stubs of what the override leaves out).

    Raises:
        OverrideError: a top-level statement that is neither an import, a definition nor a constant.
    """
    module = cst.parse_module(data)
    statements, docstring = _statements(module, path)
    by_name: dict[str, list[_Statement]] = {}
    for statement in statements:
        for name in statement.binds:
            by_name.setdefault(name, []).append(statement)
    kept: set[int] = set()
    queue = [statement for name in wanted for statement in by_name.get(name, ())]
    while queue:
        statement = queue.pop()
        if id(statement) in kept:
            continue
        kept.add(id(statement))
        queue.extend(used for name in statement.uses for used in by_name.get(name, ()))
    imports: list[str] = []
    definitions: list[str] = []
    used = {name for statement in statements if id(statement) in kept for name in statement.uses}
    for statement in statements:
        if id(statement) not in kept:
            continue
        if statement.is_import:
            imports.append(_import_text(module, statement.node, used))
            continue
        node = statement.node
        if isinstance(node, cst.ClassDef) and members.get(node.name.value):
            node = _extended(node, members[node.name.value])
        definitions.append(module.code_for_node(node))
    return Merged(docstring, tuple(text for text in imports if text), tuple(definitions))


def _statements(module: cst.Module, path: str) -> tuple[list[_Statement], str]:
    rows: list[_Statement] = []
    docstring = module.get_docstring() or ""
    for index, node in enumerate(module.body):
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            rows.append(_Statement(node, (node.name.value,), _names(node)))
        elif isinstance(node, cst.If) and isinstance(node.test, cst.Name) and node.test.value == "TYPE_CHECKING":
            bound = tuple(name for line in node.body.body for name in _imported(line))
            rows.append(_Statement(node, bound, frozenset({"TYPE_CHECKING"})))
        elif isinstance(node, cst.SimpleStatementLine):
            for small in node.body:
                if (
                    isinstance(small, cst.ImportFrom)
                    and isinstance(small.module, cst.Name)
                    and small.module.value == "__future__"
                ):
                    continue
                if isinstance(small, (cst.Import, cst.ImportFrom)):
                    rows.append(_Statement(small, tuple(_imported(node)), frozenset(), is_import=True))
                elif isinstance(small, (cst.Assign, cst.AnnAssign, cst.TypeAlias)):
                    rows.append(_Statement(node, _targets(small), _names(small)))
                elif isinstance(small, cst.Pass) or (
                    isinstance(small, cst.Expr) and isinstance(small.value, (cst.SimpleString, cst.ConcatenatedString))
                ):
                    continue
                else:
                    raise _refused(module, node, path, index)
        else:
            raise _refused(module, node, path, index)
    return rows, docstring


def _refused(module: cst.Module, node: cst.CSTNode, path: str, index: int) -> OverrideError:
    line = 1 + sum(module.code_for_node(before).count("\n") for before in module.body[:index])
    line += sum(module.code_for_node(before).count("\n") for before in module.header)
    lines = module.code_for_node(node).splitlines()
    line += next((i for i, row in enumerate(lines) if row.strip() and not row.strip().startswith("#")), 0)
    return OverrideError(
        "a top-level statement must be an import, a definition or a constant, so that bodies can be emitted one by one",
        path=path,
        line=line,
        fix="move it into a function",
    )


def _imported(node: cst.CSTNode) -> list[str]:
    if not isinstance(node, cst.SimpleStatementLine):
        return []
    names: list[str] = []
    for small in node.body:
        if isinstance(small, (cst.Import, cst.ImportFrom)) and not isinstance(small.names, cst.ImportStar):
            names.extend(_bound(alias) for alias in small.names)
    return names


def _bound(alias: cst.ImportAlias) -> str:
    if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
        return alias.asname.name.value
    node: cst.BaseExpression = alias.name
    while isinstance(node, cst.Attribute):
        node = node.value
    assert isinstance(node, cst.Name)
    return node.value


def _import_text(module: cst.Module, node: cst.CSTNode, used: Collection[str]) -> str:
    """The import statement, narrowed to the names in use."""
    assert isinstance(node, (cst.Import, cst.ImportFrom))
    if isinstance(node.names, cst.ImportStar):
        return module.code_for_node(node)
    names = [alias.with_changes(comma=cst.MaybeSentinel.DEFAULT) for alias in node.names if _bound(alias) in used]
    if not names:
        return ""
    changed: cst.Import | cst.ImportFrom = node.with_changes(names=names)
    if isinstance(changed, cst.ImportFrom):
        changed = changed.with_changes(lpar=None, rpar=None)
    return module.code_for_node(changed)


def _targets(node: cst.Assign | cst.AnnAssign | cst.TypeAlias) -> tuple[str, ...]:
    if isinstance(node, cst.TypeAlias):
        return (node.name.value,)
    roots: list[cst.BaseExpression] = (
        [node.target] if isinstance(node, cst.AnnAssign) else [target.target for target in node.targets]
    )
    names: list[str] = []
    while roots:
        root = roots.pop()
        if isinstance(root, cst.Name):
            names.append(root.value)
        elif isinstance(root, (cst.Tuple, cst.List)):
            roots.extend(element.value for element in root.elements)
    return tuple(names)


class _NameCollector(cst.CSTVisitor):
    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_Name(self, node: cst.Name) -> None:
        self.names.add(node.value)


def _names(node: cst.CSTNode) -> frozenset[str]:
    collector = _NameCollector()
    node.visit(collector)
    return frozenset(collector.names)


def _extended(node: cst.ClassDef, text: str) -> cst.ClassDef:
    """The class with more methods at its end."""
    extra = cst.parse_module(f"class _:\n{text}").body[0]
    assert isinstance(extra, cst.ClassDef) and isinstance(node.body, cst.IndentedBlock)
    return node.with_changes(body=node.body.with_changes(body=[*node.body.body, *extra.body.body]))
