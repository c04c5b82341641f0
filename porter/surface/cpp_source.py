"""One C++ file: its text, syntax tree, preprocessor guards and the definitions it holds.

Everything is computed on first use, since most files of a tree never matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tree_sitter import Node

from porter.errors import UnreadableFileError
from porter.surface.cpp_macros import Macro, expand, read_macros
from porter.surface.cpp_parse import Name, Piece, parse_pieces
from porter.surface.cpp_tokens import one_line, tokens

PREPROCESSOR = frozenset({
    "preproc_if", "preproc_ifdef", "preproc_elif", "preproc_elifdef", "preproc_else",
})  # fmt: skip
_DECLARATORS = frozenset({
    "pointer_declarator", "reference_declarator", "parenthesized_declarator", "init_declarator", "array_declarator",
    "attributed_declarator", "abstract_pointer_declarator", "abstract_reference_declarator",
    "abstract_parenthesized_declarator",
})  # fmt: skip


@dataclass(frozen=True)
class CppParameter:
    """A C++ parameter: name ("" when unnamed), type as one line without the name, node of its default."""

    name: str
    type: str
    default: Node | None = None
    pack: bool = False


@dataclass(frozen=True)
class CppFunction:
    """A function, method or constructor that a file defines or declares.

    ``qualified``: namespaces, classes and name (anonymous namespaces left out). ``body``: None for a declaration.
    """

    qualified: Name
    file: CppFile
    node: Node
    declarator: Node
    body: Node | None
    in_class: bool = False
    is_static: bool = False

    @cached_property
    def parameters(self) -> tuple[CppParameter, ...]:
        """Parameters in order; a lone ``void`` is none."""
        return read_parameters(self.declarator.child_by_field_name("parameters"))

    @cached_property
    def returns(self) -> str:
        """Return type as one line, "" for a constructor."""
        return _return_type(self.node, self.declarator)


@dataclass(frozen=True)
class CppField:
    """A data member of a class."""

    name: str
    type: str
    node: Node


@dataclass(frozen=True)
class CppClass:
    """A class, struct or enum. ``enumerators``: (name, value node) for an enum."""

    qualified: Name
    file: CppFile
    node: Node
    bases: tuple[str, ...] = ()
    fields: Mapping[str, CppField] = field(default_factory=dict)
    enumerators: tuple[tuple[str, Node | None], ...] | None = None


@dataclass(frozen=True)
class CppValue:
    """A variable with an initialiser."""

    qualified: Name
    file: CppFile
    node: Node
    value: Node


@dataclass(frozen=True)
class CppAlias:
    """``using X = type`` or a typedef."""

    qualified: Name
    file: CppFile
    type: str


@dataclass
class Definitions:
    """What one file defines, by last name."""

    functions: dict[str, list[CppFunction]] = field(default_factory=dict)
    classes: dict[str, list[CppClass]] = field(default_factory=dict)
    values: dict[str, list[CppValue]] = field(default_factory=dict)
    aliases: dict[str, list[CppAlias]] = field(default_factory=dict)
    namespace_aliases: dict[str, Name] = field(default_factory=dict)
    usings: list[Name] = field(default_factory=list)


class CppFile:
    """A C++ file. ``name`` is its path relative to the source's root, with slashes."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self.shared_macros: Mapping[bytes, Macro] = {}

    @cached_property
    def data(self) -> bytes:
        """The file's bytes as they stand."""
        try:
            return self.path.read_bytes()
        except OSError as error:
            raise UnreadableFileError(f"cannot be read: {error.strerror or error}", path=self.name) from error

    @cached_property
    def macros(self) -> tuple[Macro, ...]:
        """Every ``#define`` of the file."""
        return read_macros(self.data) if b"define" in self.data else ()

    @cached_property
    def text(self) -> bytes:
        """The file's bytes with binding macros expanded; line numbers are those of ``data``."""
        return expand(self.data, self.macros, self.shared_macros)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """Syntax trees of ``text``: one for the file, or one a construct where the file does not parse whole."""
        return parse_pieces(self.text)

    @cached_property
    def definitions(self) -> Definitions:
        """What the file defines at namespace and class level."""
        found = Definitions()
        for scope, root in self.pieces:
            _collect(root, scope, found, self, in_class=False)
        return found

    @cached_property
    def _guards(self) -> list[tuple[int, str]]:
        return list(_guard_spans(self.data))

    def guard(self, line: int) -> str:
        """Preprocessor conditions under which a line (1-based) stands, joined by `` and ``; include guards left out."""
        text = ""
        for start, guard in self._guards:
            if start > line:
                break
            text = guard
        return text

    def source(self, node: Node) -> bytes:
        """What the source has where a node stands, even where the text was repaired to parse it."""
        return self.text[node.start_byte : node.end_byte]

    def line(self, node: Node) -> int:
        """1-based line of a node."""
        return int(node.start_point[0]) + 1


def _guard_spans(data: bytes) -> Iterator[tuple[int, str]]:
    """(first line, condition) pairs: the condition holds from that line to the next pair's."""
    if b"#" not in data:
        return
    lines = data.split(b"\n")
    starts = {token.start for token in tokens(data) if token.text == b"#"}
    stack: list[tuple[str, bool]] = []  # (condition, is it an include guard)
    offset = 0
    first = True
    for number, raw in enumerate(lines, 1):
        at = offset + len(raw) - len(raw.lstrip())
        offset += len(raw) + 1
        if at not in starts:
            continue
        text = raw
        follow = number
        while text.rstrip().endswith(b"\\") and follow < len(lines):
            text = text.rstrip()[:-1] + b" " + lines[follow]
            follow += 1
        word, _, rest = one_line(text.strip()[1:].strip()).partition(" ")
        match = re.match(r"(\w+)(.*)", word)
        if match and match.group(2):
            word, rest = match.group(1), match.group(2) + (" " + rest if rest else "")
        rest = rest.strip()
        if word == "ifdef":
            stack.append((rest, False))
        elif word == "ifndef":
            after = lines[number : number + 3]
            is_include_guard = first and any(
                re.match(rb"\s*#\s*define\s+" + re.escape(rest.encode()) + rb"\s*$", one) for one in after
            )
            stack.append((_negate(rest), is_include_guard))
        elif word == "if":
            stack.append((rest, False))
        elif word in ("elif", "elifdef", "elifndef") and stack:
            stack[-1] = (_negate(rest) if word == "elifndef" else rest, False)
        elif word == "else" and stack:
            stack[-1] = (_negate(stack[-1][0]), stack[-1][1])
        elif word == "endif" and stack:
            stack.pop()
        else:
            first = first and word in ("pragma", "include")
            continue
        first = False
        yield follow + 1, " and ".join(condition for condition, include in stack if not include)


def _negate(condition: str) -> str:
    if condition.startswith("not ") and " and " not in condition:
        return condition[4:]
    return f"not {condition}" if re.fullmatch(r"\w+", condition) else f"not ({condition})"


# -- names and declarators ---------------------------------------------------------------------------------------


def split_name(text: str) -> Name:
    """``a::b<c>::d`` as its parts, template arguments left out."""
    parts: list[str] = []
    depth = 0
    current = ""
    index = 0
    while index < len(text):
        char = text[index]
        if char == "<":
            depth += 1
        elif char == ">":
            depth -= 1
        elif depth == 0:
            if text.startswith("::", index):
                parts.append(current.strip())
                current = ""
                index += 2
                continue
            current += char
        index += 1
    parts.append(current.strip())
    return tuple(part.removeprefix("template ").strip() for part in parts if part.strip())


def node_name(node: Node) -> Name:
    """Parts of the name that an identifier, qualified or template name node spells."""
    return split_name(one_line(node.text or b""))


def function_declarator(node: Node | None) -> Node | None:
    """The function declarator behind pointers and references, or None."""
    while node is not None:
        if node.type in ("function_declarator", "abstract_function_declarator"):
            inner = node.child_by_field_name("declarator")
            # A pointer to a function is a variable, not a function.
            if inner is not None and inner.type == "parenthesized_declarator":
                return None
            return node
        if node.type not in _DECLARATORS or node.type == "init_declarator":
            return None
        node = node.child_by_field_name("declarator") or (node.named_children[-1] if node.named_children else None)
    return None


def declared_name(node: Node | None) -> Node | None:
    """The identifier that a declarator declares, or None where it is abstract."""
    while node is not None:
        if node.type in ("identifier", "field_identifier", "type_identifier", "qualified_identifier"):
            return node
        if node.type in ("function_declarator", *_DECLARATORS):
            node = node.child_by_field_name("declarator") or next(
                (child for child in node.named_children if child.type.endswith(("declarator", "identifier"))), None
            )
            continue
        if node.type == "variadic_declarator":
            node = node.named_children[0] if node.named_children else None
            continue
        return None
    return None


def read_parameters(node: Node | None) -> tuple[CppParameter, ...]:
    """Parameters of a parameter list node."""
    found: list[CppParameter] = []
    for child in node.named_children if node is not None else ():
        if child.type not in (
            "parameter_declaration",
            "optional_parameter_declaration",
            "variadic_parameter_declaration",
        ):
            continue
        declarator = child.child_by_field_name("declarator")
        name = declared_name(declarator)
        default = child.child_by_field_name("default_value")
        text = child.text or b""
        end = len(text)
        if default is not None:
            end = text.rindex(b"=", 0, default.start_byte - child.start_byte)
        if name is not None:
            start, stop = name.start_byte - child.start_byte, name.end_byte - child.start_byte
            written = text[:start] + b" " + text[stop:end]
        else:
            written = text[:end]
        kind = one_line(written)
        pack = child.type == "variadic_parameter_declaration"
        found.append(CppParameter((name.text or b"").decode() if name is not None else "", kind, default, pack))
    if len(found) == 1 and found[0].type == "void" and not found[0].name:
        return ()
    return tuple(found)


def _return_type(node: Node, declarator: Node) -> str:
    for child in declarator.named_children:
        if child.type == "trailing_return_type":
            return one_line((child.text or b"").removeprefix(b"->"))
    kind = node.child_by_field_name("type")
    if kind is None:
        return ""
    # Between the type and the function's declarator stand only pointer and reference marks.
    text = node.text or b""
    marks = text[kind.end_byte - node.start_byte : declarator.start_byte - node.start_byte]
    before = text[: kind.end_byte - node.start_byte]
    words = [word for word in one_line(before).split(" ") if word not in _SPECIFIERS]
    return one_line(" ".join(words).encode() + b" " + marks)


_SPECIFIERS = frozenset({"static", "inline", "virtual", "explicit", "constexpr", "extern", "friend", "consteval"})


# -- definitions -------------------------------------------------------------------------------------------------


_NESTED = frozenset({
    "linkage_specification", "declaration_list", "ERROR", "field_declaration_list", "template_declaration",
})  # fmt: skip


def _collect(node: Node, scope: Name, found: Definitions, file: CppFile, *, in_class: bool) -> None:
    for child in node.named_children:
        kind = child.type
        if kind == "namespace_definition":
            name = child.child_by_field_name("name")
            inner = scope + (node_name(name) if name is not None else ())
            body = child.child_by_field_name("body")
            if body is not None:
                _collect(body, inner, found, file, in_class=False)
        elif kind in PREPROCESSOR or kind in _NESTED:
            _collect(child, scope, found, file, in_class=in_class)
        elif kind == "function_definition":
            _function(child, scope, found, file, in_class=in_class)
        elif kind in ("declaration", "field_declaration", "type_definition"):
            _declaration(child, scope, found, file, in_class=in_class)
        elif kind in _TYPES:
            _class(child, scope, found, file)
        elif kind == "alias_declaration":
            name, aliased = child.child_by_field_name("name"), child.child_by_field_name("type")
            if name is not None and aliased is not None:
                word = (name.text or b"").decode()
                found.aliases.setdefault(word, []).append(CppAlias((*scope, word), file, one_line(aliased.text or b"")))
        elif kind == "namespace_alias_definition":
            parts = [part for part in child.named_children if part.type != "comment"]
            if len(parts) == 2:
                found.namespace_aliases[(parts[0].text or b"").decode()] = node_name(parts[1])
        elif kind == "using_declaration":
            text = one_line(child.text or b"").rstrip(";").strip()
            if text.startswith("using namespace "):
                found.usings.append(split_name(text.removeprefix("using namespace ")))


def _function(node: Node, scope: Name, found: Definitions, file: CppFile, *, in_class: bool) -> None:
    declarator = function_declarator(node.child_by_field_name("declarator"))
    if declarator is None:
        return
    name = declarator.child_by_field_name("declarator")
    if name is None:
        return
    parts = node_name(name)
    if not parts:
        return
    is_static = any(c.type == "storage_class_specifier" and c.text == b"static" for c in node.named_children)
    body = node.child_by_field_name("body")
    entry = CppFunction((*scope, *parts), file, node, declarator, body, in_class, is_static and in_class)
    found.functions.setdefault(parts[-1], []).append(entry)
    if body is not None:
        _local_types(body, scope, found, file)


def _local_types(body: Node, scope: Name, found: Definitions, file: CppFile) -> None:
    """Types that a function defines in its body count as those of the scope around it."""
    text = body.text or b""
    if not any(word in text for word in (b"struct", b"class", b"enum")):
        return
    for child in body.named_children:
        if child.type in PREPROCESSOR or child.type == "compound_statement":
            _local_types(child, scope, found, file)
        elif child.type in _TYPES:
            _class(child, scope, found, file)
        elif child.type == "declaration":
            kind = child.child_by_field_name("type")
            if kind is not None and kind.type in _TYPES:
                _class(kind, scope, found, file)


_TYPES = frozenset({"class_specifier", "struct_specifier", "enum_specifier", "union_specifier"})


def _declaration(node: Node, scope: Name, found: Definitions, file: CppFile, *, in_class: bool) -> None:
    specifier = node.child_by_field_name("type")
    if (
        specifier is not None
        and specifier.type.endswith("_specifier")
        and specifier.child_by_field_name("body") is not None
    ):
        _class(specifier, scope, found, file)
    for declarator in node.children_by_field_name("declarator"):
        if node.type == "type_definition":
            name = declared_name(declarator)
            if name is not None and specifier is not None:
                word = (name.text or b"").decode()
                found.aliases.setdefault(word, []).append(
                    CppAlias((*scope, word), file, one_line(specifier.text or b""))
                )
            continue
        inner = function_declarator(declarator)
        if inner is not None:
            name = inner.child_by_field_name("declarator")
            parts = node_name(name) if name is not None else ()
            if parts:
                is_static = any(
                    c.type == "storage_class_specifier" and c.text == b"static" for c in node.named_children
                )
                entry = CppFunction((*scope, *parts), file, node, inner, None, in_class, is_static and in_class)
                found.functions.setdefault(parts[-1], []).append(entry)
            continue
        value = declarator.child_by_field_name("value")
        name = declared_name(declarator)
        if value is not None and name is not None:
            parts = node_name(name)
            found.values.setdefault(parts[-1], []).append(CppValue((*scope, *parts), file, node, value))


def _class(node: Node, scope: Name, found: Definitions, file: CppFile) -> None:
    body = node.child_by_field_name("body")
    name = node.child_by_field_name("name")
    if body is None or name is None:
        return
    parts = node_name(name)
    qualified = (*scope, *parts)
    enumerators: tuple[tuple[str, Node | None], ...] | None = None
    fields: dict[str, CppField] = {}
    bases: list[str] = []
    if node.type == "enum_specifier":
        enumerators = tuple(
            ((child.child_by_field_name("name").text or b"").decode(), child.child_by_field_name("value"))  # type: ignore[union-attr]
            for child in body.named_children
            if child.type == "enumerator"
        )
    else:
        for child in node.named_children:
            if child.type == "base_class_clause":
                bases.extend(
                    one_line(base.text or b"")
                    for base in child.named_children
                    if base.type not in ("access_specifier", "comment", "virtual")
                )
        _fields(body, fields)
    found.classes.setdefault(parts[-1], []).append(CppClass(qualified, file, node, tuple(bases), fields, enumerators))
    if enumerators is None:
        _collect(body, qualified, found, file, in_class=True)


def _fields(body: Node, fields: dict[str, CppField]) -> None:
    for child in body.named_children:
        if child.type in PREPROCESSOR:
            _fields(child, fields)
        if child.type != "field_declaration":
            continue
        kind = child.child_by_field_name("type")
        if kind is None:
            continue
        text = child.text or b""
        for declarator in child.children_by_field_name("declarator"):
            if function_declarator(declarator) is not None:
                continue
            name = declared_name(declarator)
            if name is None:
                continue
            marks = text[declarator.start_byte - child.start_byte : name.start_byte - child.start_byte]
            after = text[name.end_byte - child.start_byte : declarator.end_byte - child.start_byte]
            array = b"[]" if declarator.type == "array_declarator" or after.lstrip().startswith(b"[") else b""
            word = (name.text or b"").decode()
            fields[word] = CppField(word, one_line((kind.text or b"") + b" " + marks + array), child)
