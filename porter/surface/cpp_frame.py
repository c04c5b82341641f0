"""What a variable of a registration function stands for, and the frame that holds the variables.

Registration code is read as a small program: modules and classes are handles, everything else stays an expression that
is looked at where a binding needs it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tree_sitter import Node

from porter.surface.cpp_index import Place
from porter.surface.cpp_parse import Name
from porter.surface.cpp_source import CppFile
from porter.surface.cpp_tokens import one_line
from porter.surface.cpp_types import parse_type, split_arguments
from porter.surface.cpp_values import string_value


@dataclass(frozen=True)
class ModuleHandle:
    """A pybind11 module or submodule; ``scope`` is its dotted path inside the extension."""

    scope: str


@dataclass(frozen=True)
class ClassHandle:
    """A bound class: dotted path inside the extension, scope of that, and the C++ type's name as written."""

    path: str
    outer: str
    cpp: str
    is_enum: bool = False


@dataclass(frozen=True)
class LibraryHandle:
    """A ``TORCH_LIBRARY`` block of an operator namespace; ``implements`` for a ``TORCH_LIBRARY_IMPL`` block."""

    namespace: str
    implements: bool = False


@dataclass(frozen=True)
class AttributeHandle:
    """``handle.attr("name")``, to be assigned or read."""

    scope: str
    name: str


Handle = ModuleHandle | ClassHandle | LibraryHandle | AttributeHandle


@dataclass(frozen=True)
class Expression:
    """An expression together with the frame its names belong to."""

    node: Node
    frame: Frame


@dataclass(frozen=True)
class Pack:
    """Arguments bound to a parameter pack."""

    values: tuple[Value, ...]


Value = Handle | Expression | Pack


@dataclass(frozen=True)
class Frame:
    """Variables of the code being read, the place its names are looked up from, and the conditions it stands under."""

    file: CppFile
    scope: Name = ()
    variables: dict[str, Value] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    guards: tuple[str, ...] = ()
    depth: int = 0
    usings: list[Name] = field(default_factory=list)

    @property
    def place(self) -> Place:
        """Where names written in this frame are looked up."""
        return Place(self.file, self.scope, tuple(self.usings))

    def nested(self, guard: str = "") -> Frame:
        """A frame for an inner block, with its own variables."""
        guards = (*self.guards, guard) if guard else self.guards
        return replace(
            self, variables=dict(self.variables), types=dict(self.types), guards=guards, usings=list(self.usings)
        )

    def guard(self, node: Node) -> str:
        """All conditions a node stands under, joined by `` and ``."""
        own = self.file.guard(self.file.line(anchor(node)))
        listed = [*self.guards, *([own] if own else [])]
        return " and ".join(dict.fromkeys(listed))

    def text(self, node: Node, limit: int = 100) -> str:
        """One-line text of a node."""
        return one_line(node.text or b"", limit)

    def type_text(self, text: str) -> str:
        """A type with this frame's own ``using`` aliases followed."""
        for _ in range(8):
            kind = parse_type(text)
            followed = self.types.get(kind.name)
            if followed is None or followed == text:
                break
            text = followed
        return text


def anchor(node: Node) -> Node:
    """Where a call is written: in a chain of calls each has its own line, though all begin at the chain's head."""
    function = node.child_by_field_name("function") if node.type == "call_expression" else None
    if function is not None and function.type == "field_expression":
        return function.child_by_field_name("field") or node
    return node


def meaningful(node: Node | None) -> list[Node]:
    """Named children without comments."""
    return [child for child in node.named_children if child.type != "comment"] if node is not None else []


def value_of(node: Node, frame: Frame) -> Value:
    """What an expression stands for before it is evaluated: a variable's value, or the expression itself."""
    if node.type == "identifier":
        held = frame.variables.get((node.text or b"").decode())
        if held is not None:
            return held
    return Expression(node, frame)


def resolve(node: Node, frame: Frame) -> Expression | None:
    """Follow variables until an expression that is not one is reached; None for a handle or a pack."""
    for _ in range(16):
        held = frame.variables.get((node.text or b"").decode()) if node.type == "identifier" else None
        if held is None:
            return Expression(node, frame)
        if not isinstance(held, Expression):
            return None
        node, frame = held.node, held.frame
    return None


def constant_string(node: Node, frame: Frame) -> str | None:
    """Text of a string expression: literals, variables bound to them, ``+``, ``std::string(x)`` and ``.c_str()``."""
    found = resolve(node, frame)
    if found is None:
        return None
    node, frame = found.node, found.frame
    literal = string_value(node)
    if literal is not None:
        return literal
    if node.type == "concatenated_string":
        parts = [constant_string(child, frame) for child in meaningful(node)]
        return None if any(part is None for part in parts) else "".join(part for part in parts if part is not None)
    if node.type == "parenthesized_expression" and len(meaningful(node)) == 1:
        return constant_string(meaningful(node)[0], frame)
    if node.type == "binary_expression":
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        operator = node.child_by_field_name("operator")
        if left is None or right is None or operator is None or operator.text != b"+":
            return None
        one, two = constant_string(left, frame), constant_string(right, frame)
        return one + two if one is not None and two is not None else None
    if node.type == "call_expression":
        function, arguments = node.child_by_field_name("function"), meaningful(node.child_by_field_name("arguments"))
        if function is None:
            return None
        if function.type == "field_expression":
            called, owner = function.child_by_field_name("field"), function.child_by_field_name("argument")
            if (
                called is not None
                and owner is not None
                and called.text in (b"c_str", b"data", b"str")
                and not arguments
            ):
                return constant_string(owner, frame)
            return None
        if (
            callee(function).rpartition("::")[2] in ("string", "move", "forward", "str", "string_view")
            and len(arguments) == 1
        ):
            return constant_string(arguments[0], frame)
    return None


def callee(function: Node) -> str:
    """Name of what is called, template arguments left out."""
    return parse_type(one_line(function.text or b"")).name if function.type != "field_expression" else ""


def template_arguments(function: Node) -> list[str]:
    """Template arguments written on the name that is called or on a type."""
    text = one_line(function.text or b"")
    opened = text.find("<")
    return split_arguments(text[opened + 1 : -1]) if opened >= 0 and text.endswith(">") else []
