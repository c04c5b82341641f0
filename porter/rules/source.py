"""An override file as the rules see it: tree, lines, comments, names, and what its expressions evidently are."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import libcst as cst

from porter.rules.infer import Inference, Value, infer
from porter.surface.lines import Lines
from porter.surface.text import dotted

_SYNC = re.compile(r"#\s*NEURON:\s*host sync\b")
_WIDE = re.compile(r"#\s*NEURON:\s*64-bit\b[\s:,-]*(?P<reason>.*)")
_SUITES = frozenset({cst.IndentedBlock, cst.SimpleStatementSuite})
_COMPOUND = (cst.If, cst.For, cst.While, cst.With, cst.Try, cst.TryStar, cst.FunctionDef, cst.ClassDef, cst.Match)


@dataclass(frozen=True)
class Comment:
    """A comment: line, text, and whether it has the line to itself."""

    line: int
    text: str
    alone: bool


@cache
def _fields(kind: type) -> tuple[str, ...]:
    return tuple(one.name for one in dataclasses.fields(kind))


@cache
def _is_node(kind: type) -> bool:
    return issubclass(kind, cst.CSTNode)


def children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Nodes directly below a node, in the order of its fields (much faster than ``node.children``)."""
    for name in _fields(node.__class__):
        value = getattr(node, name)
        kind: type = value.__class__
        if _is_node(kind):
            yield value
        elif kind is list or kind is tuple:
            for one in value:
                if _is_node(one.__class__):
                    yield one


class SourceFile:
    """One parsed override file. Raises what ``libcst.parse_module`` raises."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self.module = cst.parse_module(data)
        self.line = Lines(self.module)
        self.parents: dict[int, cst.CSTNode] = {}
        self._by_kind: dict[type, list[tuple[int, cst.CSTNode]]] = {}
        self._index()

    def _index(self) -> None:
        stack: list[cst.CSTNode] = [self.module]
        count = 0
        while stack:
            node = stack.pop()
            self._by_kind.setdefault(type(node), []).append((count, node))
            count += 1
            below = list(children(node))
            for child in below:
                self.parents[id(child)] = node
            stack.extend(reversed(below))

    def of[T: cst.CSTNode](self, *kinds: type[T]) -> list[T]:
        """Every node of some kinds, in source order."""
        if len(kinds) == 1:
            return [node for _, node in self._by_kind.get(kinds[0], ())]  # type: ignore[misc]
        found = [pair for kind in kinds for pair in self._by_kind.get(kind, ())]
        return [node for _, node in sorted(found, key=lambda pair: pair[0])]  # type: ignore[misc]

    def calls(self) -> list[cst.Call]:
        """Every call, in source order."""
        return self.of(cst.Call)

    # -- names ---------------------------------------------------------------------------------------------------

    @cached_property
    def aliases(self) -> dict[str, str]:
        """What imported names stand for: ``F`` -> ``torch.nn.functional``."""
        found: dict[str, str] = {}
        for node in self.of(cst.Import, cst.ImportFrom):
            if isinstance(node, cst.Import):
                for alias in node.names:
                    target = dotted(alias.name) or ""
                    if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
                        found[alias.asname.name.value] = target
                    else:
                        found[target.partition(".")[0]] = target.partition(".")[0]
            elif isinstance(node, cst.ImportFrom) and not isinstance(node.names, cst.ImportStar):
                module = "." * len(node.relative) + (dotted(node.module) or "" if node.module is not None else "")
                for alias in node.names:
                    name = dotted(alias.name) or ""
                    bound = (
                        alias.asname.name.value
                        if alias.asname is not None and isinstance(alias.asname.name, cst.Name)
                        else name
                    )
                    found[bound] = f"{module}.{name}"
        return found

    def dotted(self, node: cst.CSTNode) -> str:
        """Dotted name of a name or attribute chain with imports followed, "" for anything else."""
        text = dotted(node)
        if text is None:
            return ""
        head, dot, rest = text.partition(".")
        return self.aliases.get(head, head) + dot + rest

    def torch(self, node: cst.CSTNode) -> str:
        """``arange`` for ``torch.arange`` (or ``functional.relu``), "" where the name is not torch's."""
        name = self.dotted(node)
        return name.removeprefix("torch.").removeprefix("nn.") if name.startswith("torch.") else ""

    # -- evidence ------------------------------------------------------------------------------------------------

    @cached_property
    def _inference(self) -> Inference:
        return infer(self.module, self.dotted)

    def value(self, node: cst.CSTNode) -> Value:
        """What an expression evidently is."""
        return self._inference.values.get(id(node), Value())

    def method(self, node: cst.Call) -> tuple[str, cst.BaseExpression | None]:
        """(name, receiver) of a method call on a value; ("", None) for a call of a plain or a module's name."""
        if not isinstance(node.func, cst.Attribute):
            return "", None
        head = self.dotted(node.func).partition(".")[0]
        if head and head in self.aliases.values() and self.dotted(node.func.value).partition(".")[0] == head:
            root = dotted(node.func)
            if root is not None and root.partition(".")[0] in self.aliases:
                return "", None
        return node.func.attr.value, node.func.value

    def argument(self, node: cst.Call, name: str, position: int | None = None) -> cst.BaseExpression | None:
        """A call's argument by keyword, or by position where it has one."""
        for one in node.args:
            if one.keyword is not None and one.keyword.value == name:
                return one.value
        positional = [one for one in node.args if one.keyword is None]
        if (
            position is not None
            and position < len(positional)
            and not any(one.star for one in positional[: position + 1])
        ):
            return positional[position].value
        return None

    # -- comments ------------------------------------------------------------------------------------------------

    @cached_property
    def comments(self) -> dict[int, Comment]:
        """Comments by line."""
        found: dict[int, Comment] = {}
        for node in self.of(cst.Comment):
            line = self.line(node)
            alone = isinstance(self.parents.get(id(node)), cst.EmptyLine)
            found[line] = Comment(line, node.value, alone)
        return found

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """First and last line of the statement that a node is part of; of its head, for one that holds a block."""
        part: cst.CSTNode = node
        at: cst.CSTNode | None = node
        while at is not None and not isinstance(at, (cst.SimpleStatementLine, *_COMPOUND)):
            part, at = at, self.parents.get(id(at))
        if at is None:
            return self.line(node), self.line(node)
        body = at if isinstance(at, cst.SimpleStatementLine) else part
        return self.line(at), max(self.line(body), self._last(body))

    def _last(self, node: cst.CSTNode) -> int:
        last = 1
        stack = [node]
        while stack:
            one = stack.pop()
            last = max(last, self.line(one))
            stack.extend(child for child in children(one) if type(child) not in _SUITES)
        return last

    def comment_lines(self, node: cst.CSTNode) -> list[int]:
        """Lines whose comment speaks of a node: those of its statement, and the comments straight above."""
        first, last = self.span(node)
        lines = list(range(first, last + 1))
        for start in {first, self.line(node)}:
            above = start - 1
            while above in self.comments and self.comments[above].alone:
                lines.append(above)
                above -= 1
        return sorted(set(lines))

    def marks(self, pattern: re.Pattern[str], node: cst.CSTNode) -> list[Comment]:
        """Comments that match a pattern and speak of a node."""
        lines = self.comment_lines(node)
        return [
            self.comments[line] for line in lines if line in self.comments and pattern.search(self.comments[line].text)
        ]

    def sync_marks(self, node: cst.CSTNode) -> list[Comment]:
        """``# NEURON: host sync`` comments that speak of a node."""
        return self.marks(_SYNC, node)

    def wide_marks(self, node: cst.CSTNode) -> list[Comment]:
        """``# NEURON: 64-bit`` comments with a reason that speak of a node."""
        return [one for one in self.marks(_WIDE, node) if wide_reason(one)]

    def all_sync_marks(self) -> list[Comment]:
        """Every ``# NEURON: host sync`` comment of the file."""
        return [one for _, one in sorted(self.comments.items()) if _SYNC.search(one.text)]

    def all_wide_marks(self) -> list[Comment]:
        """Every ``# NEURON: 64-bit`` comment of the file, with or without a reason."""
        return [one for _, one in sorted(self.comments.items()) if _WIDE.search(one.text)]

    # -- structure -----------------------------------------------------------------------------------------------

    def function_of(self, node: cst.CSTNode) -> cst.FunctionDef | None:
        """The innermost function around a node."""
        at = self.parents.get(id(node))
        while at is not None and not isinstance(at, cst.FunctionDef):
            at = self.parents.get(id(at))
        return at

    def in_annotation(self, node: cst.CSTNode) -> bool:
        """Is a node part of an annotation?"""
        at: cst.CSTNode | None = node
        while at is not None:
            if isinstance(at, cst.Annotation):
                return True
            at = self.parents.get(id(at))
        return False


def wide_reason(comment: Comment) -> str:
    """The reason that a ``# NEURON: 64-bit`` comment gives."""
    match = _WIDE.search(comment.text)
    return match.group("reason").strip() if match else ""


def parameters_of(function: cst.FunctionDef) -> list[str]:
    """Names of a function's parameters in order, starred ones left out."""
    listed = function.params
    return [one.name.value for one in (*listed.posonly_params, *listed.params, *listed.kwonly_params)]
