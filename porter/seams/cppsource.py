"""A C++ file with byte positions: finds functions, conditionals, calls and includes with tree-sitter."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence

import tree_sitter_cpp
from tree_sitter import Language, Node, Parser

from porter.seams.model import AnchorError, Edit
from porter.seams.pysource import splice

_LANGUAGE = Language(tree_sitter_cpp.language())


class CppSource:
    """One parsed file."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.root = Parser(_LANGUAGE).parse(data).root_node
        self._newline = "\r\n" if b"\r\n" in data else "\n"

    def line(self, node: Node) -> int:
        """1-based line where ``node`` starts."""
        return node.start_point[0] + 1

    def text(self, node: Node) -> str:
        """Source text of ``node``."""
        return self.data[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def walk(self, node: Node | None = None) -> Iterator[Node]:
        """``node`` (the file by default) and everything below, in order of the text."""
        stack = [self.root if node is None else node]
        while stack:
            current = stack.pop()
            yield current
            stack.extend(reversed(current.children))

    # ---- finding

    def function(self, name: str, parameters: Sequence[str] | None = None) -> Node:
        """The definition of the free function or method ``name``, with these parameter names where they are given."""
        definitions = [node for node in self.walk() if node.type == "function_definition"]
        found = [node for node in definitions if self._name(node) == name]
        if not found:
            names = {self._name(node) or "" for node in definitions}
            close = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.5)
            nearest = next((node for node in definitions if close and self._name(node) == close[0]), None)
            raise AnchorError(
                1 if nearest is None else self.line(nearest),
                f"function {name}",
                "no function of that name" if nearest is None else f"function {close[0]}",
            )
        if len(found) > 1:
            raise AnchorError(self.line(found[1]), f"function {name} once", f"{len(found)} definitions")
        if parameters is not None:
            names_found = self._parameters(found[0])
            if names_found != list(parameters):
                raise AnchorError(
                    self.line(found[0]),
                    f"function {name}({', '.join(parameters)})",
                    f"{name}({', '.join(names_found)})",
                )
        return found[0]

    def body(self, function: Node) -> Node:
        """The function's ``{ ... }``."""
        node = function.child_by_field_name("body")
        if node is None or node.type != "compound_statement":
            raise AnchorError(self.line(function), f"a body of {self._name(function)}", "none")
        return node

    def conditional(self, within: Node, macro: str) -> Node:
        """The only ``#ifdef macro`` inside ``within``."""
        found = [
            node
            for node in self.walk(within)
            if node.type == "preproc_ifdef"
            and self.text(node.children[0]).strip() == "#ifdef"
            and (name := node.child_by_field_name("name")) is not None
            and self.text(name) == macro
        ]
        if len(found) != 1:
            raise AnchorError(
                self.line(within), f"one #ifdef {macro} in {self._name(within) or 'the file'}", f"{len(found)} of them"
            )
        return found[0]

    def call_argument(self, within: Node, method: str, argument: str) -> Node:
        """The argument ``argument`` of the only call ``...method(argument)`` inside ``within``."""
        found: list[Node] = []
        for node in self.walk(within):
            if node.type != "call_expression":
                continue
            callee, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
            if callee is None or arguments is None or callee.type != "field_expression":
                continue
            field = callee.child_by_field_name("field")
            given = arguments.named_children
            if field is not None and self.text(field) == method and len(given) == 1 and self.text(given[0]) == argument:
                found.append(given[0])
        if len(found) != 1:
            raise AnchorError(
                self.line(within), f"one call .{method}({argument}) in {self._name(within)}", f"{len(found)} of them"
            )
        return found[0]

    def mentions(self, within: Node, names: Sequence[str]) -> None:
        """Raise AnchorError unless ``within`` uses each of ``names``."""
        present = {self.text(node) for node in self.walk(within) if "identifier" in node.type}
        missing = [name for name in names if name not in present]
        if missing:
            raise AnchorError(
                self.line(within), f"{self._name(within)} to use {', '.join(missing)}", "a body that does not"
            )

    def include(self, header: str) -> Node:
        """The directive that includes ``header`` (with its quotes or brackets)."""
        includes = [node for node in self.walk() if node.type == "preproc_include"]
        for node in includes:
            path = node.child_by_field_name("path")
            if path is not None and self.text(path) == header:
                return node
        raise AnchorError(self.line(includes[0]) if includes else 1, f"#include {header}", "no such directive")

    def _name(self, function: Node) -> str | None:
        declarator = self._function_declarator(function)
        name = declarator.child_by_field_name("declarator") if declarator is not None else None
        return None if name is None else self.text(name).split("::")[-1]

    def _function_declarator(self, function: Node) -> Node | None:
        node = function.child_by_field_name("declarator") if function.type == "function_definition" else None
        while node is not None and node.type != "function_declarator":
            node = node.child_by_field_name("declarator") or next(
                (c for c in node.named_children if "declarator" in c.type), None
            )
        return node

    def _parameters(self, function: Node) -> list[str]:
        declarator = self._function_declarator(function)
        listed = declarator.child_by_field_name("parameters") if declarator is not None else None
        names: list[str] = []
        for parameter in listed.named_children if listed is not None else ():
            if parameter.type not in ("parameter_declaration", "optional_parameter_declaration"):
                continue
            identifiers = [
                node for node in self.walk(parameter.child_by_field_name("declarator")) if node.type == "identifier"
            ]
            names.append(self.text(identifiers[-1]) if identifiers else "")
        return names

    # ---- editing

    def replace(self, node: Node, text: str) -> Edit:
        """``text`` in the place of ``node``."""
        return Edit(node.start_byte, self.data[node.start_byte : node.end_byte], self._plain(text))

    def replace_line(self, node: Node, text: str) -> Edit:
        """``text`` in the place of the line that ``node`` starts on, its end kept."""
        start = self.data.rfind(b"\n", 0, node.start_byte) + 1
        end = self._line_end(node.start_byte)
        while end > start and self.data[end - 1 : end] in (b"\n", b"\r"):
            end -= 1
        return Edit(start, self.data[start:end], self._plain(text))

    def line_after(self, node: Node, text: str) -> Edit:
        """``text`` as lines of their own after the line that ``node`` ends on."""
        last = node.end_byte - 1 if self.data[node.end_byte - 1 : node.end_byte] == b"\n" else node.end_byte
        return Edit(self._line_end(last), b"", self._plain(text.strip("\n") + "\n"))

    def wrap_body(self, body: Node, before: str, after: str) -> tuple[Edit, Edit]:
        """Lines right after the opening brace and right before the closing one. The body must be on several lines."""
        opening = self._line_end(body.start_byte)
        closing = self.data.rfind(b"\n", 0, body.end_byte - 1) + 1
        if opening > closing:
            raise AnchorError(self.line(body), "a body on several lines", "one on a single line")
        return (
            Edit(opening, b"", self._plain(before.strip("\n") + "\n")),
            Edit(closing, b"", self._plain(after.strip("\n") + "\n")),
        )

    def _line_end(self, offset: int) -> int:
        end = self.data.find(b"\n", offset)
        return len(self.data) if end < 0 else end + 1

    def _plain(self, text: str) -> bytes:
        return text.replace("\n", self._newline).encode()


def cpp_edits(find: Callable[[CppSource], Sequence[Edit]]) -> Callable[[bytes], tuple[Edit, ...]]:
    """``find`` as a seam's ``edits``; the result must have no more parse errors than the original."""

    def edits(data: bytes) -> tuple[Edit, ...]:
        source = CppSource(data)
        found = tuple(sorted(find(source), key=lambda edit: edit.offset))
        edited = CppSource(splice(data, found))
        if _errors(edited) > _errors(source):
            raise AnchorError(1, "C++ that still parses once edited", "new parse errors")
        return found

    return edits


def _errors(source: CppSource) -> int:
    return sum(1 for node in source.walk() if node.type == "ERROR" or node.is_missing)
