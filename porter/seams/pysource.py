"""A Python file with byte positions: finds functions, classes and statements by name and makes edits beside them.

All reading is libcst; all edits are byte splices, so that what is not edited stays as it is to the last byte.
"""

from __future__ import annotations

import difflib
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence

import libcst as cst
import libcst.matchers as m
from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper

from porter.seams.model import AnchorError, Edit

Scope = cst.Module | cst.ClassDef | cst.FunctionDef
Statement = cst.BaseStatement | cst.BaseSmallStatement

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class PythonSource:
    """One parsed file. Raises AnchorError where it is not Python that libcst reads."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        # libcst is given the text without its byte order mark; positions are shifted back.
        self._shift = len(_BYTE_ORDER_MARK) if data.startswith(_BYTE_ORDER_MARK) else 0
        try:
            module = cst.parse_module(data[self._shift :])
        except cst.ParserSyntaxError as error:
            raise AnchorError(error.raw_line, "a Python file", f"a syntax error: {error.message}") from error
        except (TypeError, RecursionError, UnicodeError, SyntaxError) as error:
            raise AnchorError(1, "a Python file", f"{type(error).__name__}: {error}") from error
        if module.encoding.lower().replace("_", "-") != "utf-8" or module.bytes != data[self._shift :]:
            raise AnchorError(
                1, "a UTF-8 file with one kind of line end", f"encoding {module.encoding}, or mixed line ends"
            )
        wrapper = MetadataWrapper(module, unsafe_skip_copy=True)
        self.module = wrapper.module
        self._spans = wrapper.resolve(ByteSpanPositionProvider)
        self._newline = module.default_newline

    # ---- positions

    def start(self, node: cst.CSTNode) -> int:
        """Byte where ``node`` starts."""
        return self._spans[node].start + self._shift

    def end(self, node: cst.CSTNode) -> int:
        """Byte after ``node``."""
        return self.start(node) + self._spans[node].length

    def line(self, node: cst.CSTNode) -> int:
        """1-based line where ``node`` starts."""
        return 1 if isinstance(node, cst.Module) else self.data.count(b"\n", 0, self.start(node)) + 1

    def text(self, node: cst.CSTNode) -> str:
        """Source text of ``node``."""
        return self.data[self.start(node) : self.end(node)].decode()

    def _line_start(self, offset: int) -> int:
        return self.data.rfind(b"\n", 0, offset) + 1

    def _line_end(self, offset: int) -> int:
        end = self.data.find(b"\n", offset)
        return len(self.data) if end < 0 else end + 1

    # ---- finding

    def class_(self, name: str, within: Scope | None = None) -> cst.ClassDef:
        """The class ``name`` directly in ``within`` (the module by default)."""
        return self._named(cst.ClassDef, "class", name, within)

    def function(
        self, name: str, within: Scope | None = None, parameters: Sequence[str] | None = None
    ) -> cst.FunctionDef:
        """The function ``name`` directly in ``within``, with exactly these parameter names where they are given."""
        node = self._named(cst.FunctionDef, "function", name, within)
        if parameters is not None:
            every = node.params
            names = [p.name.value for p in (*every.posonly_params, *every.params, *every.kwonly_params)]
            if names != list(parameters):
                raise AnchorError(
                    self.line(node), f"function {name}({', '.join(parameters)})", f"{name}({', '.join(names)})"
                )
        return node

    def _named[T: (cst.ClassDef, cst.FunctionDef)](
        self, kind: type[T], word: str, name: str, within: Scope | None
    ) -> T:
        scope = self.module if within is None else within
        candidates = [node for node in self.statements(scope) if isinstance(node, kind)]
        for node in candidates:
            if node.name.value == name:
                return node
        place = f"in {self._title(scope)}"
        close = difflib.get_close_matches(name, [node.name.value for node in candidates], n=1, cutoff=0.4)
        nearest = next((node for node in candidates if close and node.name.value == close[0]), None)
        if nearest is None:
            raise AnchorError(self.line(scope), f"{word} {name} {place}", f"no {word} of that name {place}")
        raise AnchorError(self.line(nearest), f"{word} {name} {place}", f"{word} {nearest.name.value}")

    def _title(self, scope: Scope) -> str:
        return "the module" if isinstance(scope, cst.Module) else scope.name.value

    def statements(self, scope: Scope) -> list[Statement]:
        """Statements directly in ``scope``; those that share a line come one by one."""
        body: Sequence[cst.BaseStatement | cst.BaseSmallStatement] = (
            scope.body if isinstance(scope, cst.Module) else scope.body.body
        )
        result: list[Statement] = []
        for node in body:
            if isinstance(node, cst.SimpleStatementLine):
                result.extend(node.body)
            else:
                result.append(node)
        return result

    def one[T: cst.CSTNode](self, nodes: Iterable[T], expected: str, within: Scope) -> T:
        """The only one of ``nodes``. Raises AnchorError that says ``expected`` where there are none, or several."""
        found = list(nodes)
        if len(found) != 1:
            line = self.line(found[1]) if len(found) > 1 else self.line(within)
            raise AnchorError(line, f"{expected} once in {self._title(within)}", f"{len(found)} of them")
        return found[0]

    def all[T: cst.CSTNode](self, scope: cst.CSTNode, kind: type[T], matcher: m.BaseMatcherNode) -> list[T]:
        """Every node of type ``kind`` below ``scope`` that matches, in order of the text."""
        found = [node for node in m.findall(scope, matcher) if isinstance(node, kind)]
        return sorted(found, key=self.start)

    def top_level[T: cst.CSTNode](self, kind: type[T], matcher: m.BaseMatcherNode) -> list[T]:
        """Statements of the module itself, of type ``kind``, that match."""
        return [node for node in self.statements(self.module) if isinstance(node, kind) and m.matches(node, matcher)]

    def assigned(self, scope: Scope, name: str) -> cst.Assign:
        """The only assignment to ``name``, or to ``self.name`` for a dotted one, anywhere in ``scope``."""
        target: m.BaseMatcherNode = m.Name(name)
        if "." in name:
            owner, _, attribute = name.partition(".")
            target = m.Attribute(value=m.Name(owner), attr=m.Name(attribute))
        found = [
            node
            for node in self.all(scope, cst.Assign, m.Assign())
            if any(m.matches(item.target, target) for item in node.targets)
        ]
        return self.one(found, f"{name} = ...", scope)

    def imported_names(self, module: str) -> Sequence[cst.ImportAlias]:
        """The names of the module's only ``from <module> import ...`` at top level."""
        found = [
            node
            for node in self.statements(self.module)
            if isinstance(node, cst.ImportFrom)
            and node.module is not None
            and self.text(node.module) == module
            and not node.relative
        ]
        node = self.one(found, f"from {module} import ...", self.module)
        if isinstance(node.names, cst.ImportStar):
            raise AnchorError(self.line(node), f"names in from {module} import", "a star")
        return node.names

    def require_names(self, scope: cst.FunctionDef, names: Iterable[str]) -> None:
        """Raise AnchorError unless ``scope`` mentions each of ``names``: a cheap sign that it still does its job."""
        present = {node.value for node in self.all(scope, cst.Name, m.Name())}
        missing = [name for name in names if name not in present]
        if missing:
            raise AnchorError(
                self.line(scope), f"function {scope.name.value} to use {', '.join(missing)}", "a body that does not"
            )

    def require_absent(self, name: str, within: Scope) -> None:
        """Raise AnchorError where ``within`` already defines ``name``: upstream has something of its own there."""
        for node in self.statements(within):
            if isinstance(node, cst.FunctionDef | cst.ClassDef) and node.name.value == name:
                raise AnchorError(self.line(node), f"no {name} in {self._title(within)}", "one of upstream's own")

    def require_fields(self, scope: cst.ClassDef, names: Iterable[str]) -> None:
        """Raise AnchorError unless class ``scope`` declares each of ``names`` with an annotation."""
        declared = {
            node.target.value
            for node in self.statements(scope)
            if isinstance(node, cst.AnnAssign) and isinstance(node.target, cst.Name)
        }
        missing = [name for name in names if name not in declared]
        if missing:
            raise AnchorError(
                self.line(scope), f"class {scope.name.value} with {', '.join(missing)}", "a class without"
            )

    def require_import(self, name: str) -> None:
        """Raise AnchorError unless the module's top level binds ``name`` by a from-import."""
        for node in self.statements(self.module):
            if isinstance(node, cst.ImportFrom) and not isinstance(node.names, cst.ImportStar):
                for alias in node.names:
                    bound = alias.asname.name if alias.asname is not None else alias.name
                    if isinstance(bound, cst.Name) and bound.value == name:
                        return
        raise AnchorError(1, f"from ... import {name}", "no such import")

    # ---- editing

    def at_body_start(self, function: cst.FunctionDef, code: str) -> Edit:
        """``code`` as the function's first statements, after its docstring."""
        if not isinstance(function.body, cst.IndentedBlock) or not function.body.body:
            raise AnchorError(
                self.line(function), f"function {function.name.value} with an indented body", "a body on one line"
            )
        first = function.body.body[0]
        if function.get_docstring() is not None:
            if len(function.body.body) > 1 and isinstance(first, cst.SimpleStatementLine) and len(first.body) == 1:
                return self.before(function.body.body[1], code, blank_after=True)
            raise AnchorError(self.line(function), f"a body after {function.name.value}'s docstring", "nothing")
        return self.before(first, code, blank_after=True)

    def before(self, node: cst.CSTNode, code: str, *, blank_after: bool = False) -> Edit:
        """``code`` on lines of its own before the statement ``node``, with its indentation."""
        offset = self._line_start(self.start(node))
        return Edit(offset, b"", self._block(code, self._indent(node), blank_after=blank_after))

    def after(self, node: cst.CSTNode, code: str, *, blank_before: bool = False) -> Edit:
        """``code`` on lines of its own after the statement ``node``, with its indentation."""
        offset = self._line_end(max(self.end(node) - 1, self.start(node)))
        added = self._block(code, self._indent(node), blank_before=blank_before)
        if offset and not self.data[:offset].endswith(b"\n"):
            added = self._newline.encode() + added
        return Edit(offset, b"", added)

    def replace(self, node: cst.CSTNode, text: str) -> Edit:
        """``text`` in the place of ``node``."""
        return Edit(self.start(node), self.data[self.start(node) : self.end(node)], self._plain(text))

    def insert_after(self, node: cst.CSTNode, text: str) -> Edit:
        """``text`` right behind ``node``, on its line."""
        return Edit(self.end(node), b"", self._plain(text))

    def insert_before(self, node: cst.CSTNode, text: str) -> Edit:
        """``text`` right before ``node``, on its line."""
        return Edit(self.start(node), b"", self._plain(text))

    def _indent(self, node: cst.CSTNode) -> str:
        start = self._line_start(self.start(node))
        line = self.data[start : self.start(node)].decode()
        if line.strip():
            raise AnchorError(self.line(node), "a statement on a line of its own", repr(line.strip()))
        return line

    def _block(self, code: str, indent: str, *, blank_after: bool = False, blank_before: bool = False) -> bytes:
        lines = textwrap.dedent(code).strip("\n").split("\n")
        block = "".join(f"{indent if line.strip() else ''}{line}\n" for line in lines)
        return self._plain(("\n" if blank_before else "") + block + ("\n" if blank_after else ""))

    def _plain(self, text: str) -> bytes:
        return re.sub("\n", lambda _: self._newline, text).encode()


def python_edits(find: Callable[[PythonSource], Sequence[Edit]]) -> Callable[[bytes], tuple[Edit, ...]]:
    """``find`` as a seam's ``edits``: parses the bytes first, and the result afterwards."""

    def edits(data: bytes) -> tuple[Edit, ...]:
        found = tuple(sorted(find(PythonSource(data)), key=lambda edit: edit.offset))
        PythonSource(splice(data, found))
        return found

    return edits


def splice(data: bytes, edits: Sequence[Edit]) -> bytes:
    """``data`` with ``edits`` done; they must not overlap and must remove what stands there."""
    parts: list[bytes] = []
    position = 0
    for edit in sorted(edits, key=lambda item: item.offset):
        if edit.offset < position or data[edit.offset : edit.offset + len(edit.removed)] != edit.removed:
            raise ValueError(f"edits overlap or do not fit at byte {edit.offset}")
        parts += [data[position : edit.offset], edit.added]
        position = edit.offset + len(edit.removed)
    return b"".join([*parts, data[position:]])
