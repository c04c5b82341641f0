"""Bindings of classes: ``py::class_``, ``py::enum_`` and their relatives, and what is defined on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tree_sitter import Node

from porter.surface.cpp_callable import BoundFunction, Extras, alias_follower, constructor, describe
from porter.surface.cpp_frame import (
    ClassHandle,
    Expression,
    Frame,
    Handle,
    ModuleHandle,
    callee,
    constant_string,
    meaningful,
    resolve,
    template_arguments,
)
from porter.surface.cpp_index import Place
from porter.surface.cpp_record import UNRESOLVED, Recorder, join_path, name_place, relative_path, scope_of
from porter.surface.cpp_source import CppClass, split_name
from porter.surface.cpp_tokens import digest_tokens, one_line
from porter.surface.cpp_types import annotation, parse_type, split_arguments
from porter.surface.cpp_values import python_value
from porter.surface.model import BindingFacts, Parameter, ParameterKind, Signature

CLASS_MAKERS = frozenset({
    "class_", "classh", "enum_", "native_enum", "exception", "register_exception", "register_local_exception", "bind_vector",
    "bind_map",
})  # fmt: skip
_OPERATORS = {
    "+": "__add__", "-": "__sub__", "*": "__mul__", "/": "__truediv__", "%": "__mod__", "==": "__eq__", "!=": "__ne__",
    "<": "__lt__", ">": "__gt__", "<=": "__le__", ">=": "__ge__", "&": "__and__", "|": "__or__", "^": "__xor__",
    "<<": "__lshift__", ">>": "__rshift__", "+=": "__iadd__", "-=": "__isub__", "*=": "__imul__", "/=": "__itruediv__",
}  # fmt: skip
# What pybind11's enum_ gives every enum (pybind11/pybind11.h, detail::enum_base), with the argument after self.
_ENUM_METHODS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("__init__", ("value",), "None"), ("__int__", (), "int"), ("__index__", (), "int"), ("__hash__", (), "int"),
    ("__repr__", (), "str"), ("__str__", (), "str"), ("__eq__", ("other",), "bool"), ("__ne__", ("other",), "bool"),
    ("__getstate__", (), "int"), ("__setstate__", ("state",), "None"),
)  # fmt: skip
_ENUM_ARITHMETIC = (
    "__lt__", "__gt__", "__le__", "__ge__", "__and__", "__rand__", "__or__", "__ror__", "__xor__", "__rxor__", "__invert__",
)  # fmt: skip


class ClassBinder:
    """Records classes and their members with a recorder."""

    def __init__(self, record: Recorder) -> None:
        self.record = record

    def construct(
        self, type_text: str, owner: Handle | None, arguments: list[Node], node: Node, frame: Frame
    ) -> ClassHandle | None:
        """Carry out ``py::class_<T, ...>(owner, "Name", ...)`` and its relatives."""
        kind = parse_type(type_text)
        last = kind.name.rpartition("::")[2]
        if last not in CLASS_MAKERS:
            return None
        opened = type_text.find("<")
        listed = split_arguments(type_text[opened + 1 : -1]) if opened >= 0 and type_text.endswith(">") else []
        if owner is None:
            return None
        if not isinstance(owner, (ModuleHandle, ClassHandle)):
            self.record.unresolved(node, frame, "a class in a scope that was not understood")
            return None
        word = constant_string(arguments[1], frame) if len(arguments) > 1 else None
        if word is None:
            self.record.unresolved(node, frame, "a class without a literal name")
            return None
        scope = scope_of(owner)
        cpp = frame.type_text(listed[0]) if listed else ""
        path = join_path(scope, word)
        found = self.record.sources.classes(cpp, frame.place) if cpp else ()
        is_enum = last in ("enum_", "native_enum")
        bases, notes = self._bases(last, listed, arguments, found, scope, frame)
        digest = digest_tokens(sorted({one.file.source(one.node) for one in found})) if found else ""
        self.record.add(
            BindingFacts(scope, word, "class", *name_place(node, frame), bases=bases, digest=digest, notes=notes),
            node,
            frame,
        )
        for one in found:
            self.record.classes.setdefault(one.qualified, (path, cpp))
        if not found and cpp:
            self.record.classes.setdefault(split_name(cpp), (path, cpp))
        handle = ClassHandle(path, scope, cpp, is_enum)
        if is_enum:
            arithmetic = any("arithmetic" in frame.text(argument) for argument in arguments[2:])
            self._enum_members(handle, node, frame, native=last == "native_enum", arithmetic=arithmetic)
        if last in ("bind_vector", "bind_map"):
            what = "list" if last == "bind_vector" else "dict"
            opaque = f"{last} gives it the methods of a {what}"
            self.record.add(
                BindingFacts(path, UNRESOLVED, "function", frame.file.name, frame.file.line(node), opaque=opaque),
                node,
                frame,
            )
        return handle

    def _bases(
        self, maker: str, listed: list[str], arguments: list[Node], found: Sequence[CppClass], scope: str, frame: Frame
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if maker in ("exception", "register_exception", "register_local_exception"):
            base = arguments[2] if len(arguments) > 2 else None
            text = frame.text(base) if base is not None else "PyExc_Exception"
            return (text.removeprefix("PyExc_"),) if text.startswith("PyExc_") else (), ()
        bases: list[str] = []
        notes: list[str] = []
        declared = {split_name(base)[-1:] for one in found for base in one.bases}
        for text in listed[1:] if maker in ("class_", "classh") else []:
            text = frame.type_text(text)
            last = parse_type(text).name.rpartition("::")[2]
            if last.endswith(("_ptr", "_holder", "smart_holder")):
                continue
            bound = self.record.bound_class(text, frame)
            if bound is not None:
                bases.append(relative_path(bound, scope))
            elif split_name(text)[-1:] in declared:
                notes.append(f"base `{text}` is not bound in this extension")
        return tuple(bases), tuple(notes)

    def _enum_members(self, handle: ClassHandle, node: Node, frame: Frame, *, native: bool, arithmetic: bool) -> None:
        path, line = frame.file.name, frame.file.line(node)
        if native:
            return
        rows = list(_ENUM_METHODS)
        if arithmetic:
            rows += [(name, ("other",) if name != "__invert__" else (), "object") for name in _ENUM_ARITHMETIC]
        for name, words, returns in rows:
            parameters = tuple(Parameter(word) for word in words)
            self.record.add(
                BindingFacts(
                    handle.path,
                    name,
                    "method",
                    path,
                    line,
                    Signature(parameters, None if returns == "object" else returns),
                ),
                node,
                frame,
            )
        for name, returns in (("name", "str"), ("value", "int")):
            self.record.add(
                BindingFacts(handle.path, name, "property", path, line, Signature((), returns), writable=False),
                node,
                frame,
            )
        opaque = "a dict of the members, made by pybind11"
        self.record.add(BindingFacts(handle.path, "__members__", "constant", path, line, opaque=opaque), node, frame)

    def method(self, handle: ClassHandle, name: str, arguments: list[Node], node: Node, frame: Frame) -> Handle | None:
        method: Callable[[ClassHandle, str, list[Node], Node, Frame], bool] | None = None
        if name == "def":
            method = self._def
        elif name == "def_static":
            method = self._def_static
        elif name.startswith("def_property"):
            method = self._def_property
        elif name.startswith(("def_readwrite", "def_readonly")):
            method = self._def_member
        elif name == "value" and handle.is_enum:
            method = self._def_value
        elif name == "def_cast":
            method = self._def
        elif name == "def_pickle":
            self._pickle(handle, arguments, node, frame)
            return handle
        if method is None or not method(handle, name, arguments, node, frame):
            self.record.unresolved(node, frame, f"a class method `{name}` that was not understood")
        return handle

    def _def(self, handle: ClassHandle, name: str, arguments: list[Node], node: Node, frame: Frame) -> bool:
        if not arguments:
            return False
        word = constant_string(arguments[0], frame)
        if word is not None and len(arguments) >= 2:
            extras = self.record.extras(arguments[2:], frame, handle.path)
            self.record.function(handle.path, "method", word, arguments[1], extras, node, frame, drops_self=True)
            return True
        found = resolve(arguments[0], frame) or Expression(arguments[0], frame)
        first = found.node
        if first.type == "binary_expression" or first.type == "assignment_expression":
            return self._operator(handle, first, node, frame)
        if first.type == "unary_expression" and "self" in frame.text(first):
            sign = frame.text(first)[0]
            special = {"-": "__neg__", "+": "__pos__", "~": "__invert__", "!": "__bool__"}.get(sign)
            if special is None:
                return False
            self.record.add(
                BindingFacts(handle.path, special, "method", *name_place(node, frame), Signature()), node, frame
            )
            return True
        if first.type != "call_expression":
            return False
        function, inner = first.child_by_field_name("function"), meaningful(first.child_by_field_name("arguments"))
        if function is None:
            return False
        last = callee(function).rpartition("::")[2]
        if last in ("init", "init_alias"):
            extras = self.record.extras(arguments[1:], frame, handle.path)
            if inner:
                what = describe(inner[0], found.frame, self.record.sources, len(extras.arguments) or None)
                what = replace(what, returns="void", member=True)
            else:
                what = constructor(handle, template_arguments(function), found.frame, self.record.sources)
            self.record.bound(handle.path, "method", "__init__", what, extras, node, frame, drops_self=True)
            return True
        if last == "pickle":
            self._pickle(handle, inner, node, frame)
            return True
        if last in ("hash", "str", "repr") and inner != [] and "self" in frame.text(first):
            self.record.add(
                BindingFacts(handle.path, f"__{last}__", "method", *name_place(node, frame), Signature()), node, frame
            )
            return True
        return False

    def _operator(self, handle: ClassHandle, first: Node, node: Node, frame: Frame) -> bool:
        operator, left, right = (first.child_by_field_name(field) for field in ("operator", "left", "right"))
        if operator is None or left is None or right is None:
            return False
        special = _OPERATORS.get(frame.text(operator))
        if special is None:
            return False
        if not frame.text(left).endswith("self"):
            special = "__r" + special[2:] if special[2:-2] not in ("eq", "ne", "lt", "gt", "le", "ge") else special
        parameters = (Parameter("arg0", ParameterKind.POSITIONAL_ONLY),)
        self.record.add(
            BindingFacts(handle.path, special, "method", *name_place(node, frame), Signature(parameters)), node, frame
        )
        return True

    def _pickle(self, handle: ClassHandle, arguments: list[Node], node: Node, frame: Frame) -> None:
        for name, function in zip(("__getstate__", "__setstate__"), arguments, strict=False):
            what = describe(function, frame, self.record.sources)
            if name == "__setstate__":
                what = replace(what, member=True, returns="void")
            self.record.bound(handle.path, "method", name, what, Extras(), node, frame, drops_self=True)

    def _def_static(self, handle: ClassHandle, name: str, arguments: list[Node], node: Node, frame: Frame) -> bool:
        word = constant_string(arguments[0], frame) if len(arguments) >= 2 else None
        if word is None:
            return False
        extras = self.record.extras(arguments[2:], frame, handle.path)
        self.record.function(handle.path, "staticmethod", word, arguments[1], extras, node, frame, drops_self=False)
        return True

    def _def_property(self, handle: ClassHandle, name: str, arguments: list[Node], node: Node, frame: Frame) -> bool:
        word = constant_string(arguments[0], frame) if len(arguments) >= 2 else None
        if word is None:
            return False
        getter = self._accessor(handle, arguments[1], frame)
        digests = [getter.digest]
        writable = "readonly" not in name
        if writable and len(arguments) > 2 and arguments[2].type not in ("null", "string_literal"):
            setter = self._accessor(handle, arguments[2], frame)
            digests.append(setter.digest)
        returns = None
        if getter.returns and parse_type(getter.returns).name != "auto":
            returns = annotation(getter.returns, alias_follower(self.record.sources, getter.place))
        known = [digest.encode() for digest in digests if digest]
        digest = digests[0] if len(known) == 1 and digests[0] else digest_tokens(known) if known else ""
        notes = (getter.reason,) if getter.reason else ()
        self.record.add(
            BindingFacts(
                handle.path, word, "property", *name_place(node, frame), Signature((), returns), digest=digest, notes=notes,
                writable=writable,
            ),
            node,
            frame,
        )  # fmt: skip
        return True

    def _accessor(self, handle: ClassHandle, node: Node, frame: Frame) -> BoundFunction:
        what = describe(node, frame, self.record.sources)
        if what.digest or what.returns:
            return what
        # A pointer to a data member is an accessor too.
        member = self._member(handle, node, frame)
        if member is None:
            return what
        return BoundFunction((), member[0], True, digest_tokens([member[1]]), member[2])

    def _member(self, handle: ClassHandle, node: Node, frame: Frame) -> tuple[str, bytes, Place] | None:
        """Type, text and place of the data member that ``&Class::member`` names."""
        found = resolve(node, frame)
        if found is None:
            return None
        text = one_line(found.node.text or b"").lstrip("&").strip("()")
        parts = text.split("::")
        if len(parts) > 1 and found.frame.types.get(parts[0]):
            text = "::".join([found.frame.type_text(parts[0]), *parts[1:]])
        located = self.record.sources.field(text, found.frame.place)
        if located is None:
            return None
        kind, owner = located
        member = owner.fields[split_name(text)[-1]]
        return kind, owner.file.source(member.node), Place(owner.file, owner.qualified)

    def _def_member(self, handle: ClassHandle, name: str, arguments: list[Node], node: Node, frame: Frame) -> bool:
        word = constant_string(arguments[0], frame) if len(arguments) >= 2 else None
        if word is None:
            return False
        located = self._member(handle, arguments[1], frame)
        returns: str | None = None
        digest = ""
        notes: tuple[str, ...] = (f"data member `{frame.text(arguments[1])}` not found in the sources",)
        if located is not None:
            kind, text, place = located
            returns, digest, notes = (
                annotation(kind, alias_follower(self.record.sources, place)),
                digest_tokens([text]),
                (),
            )
        self.record.add(
            BindingFacts(
                handle.path, word, "property", *name_place(node, frame), Signature((), returns), digest=digest, notes=notes,
                writable=name.startswith("def_readwrite"),
            ),
            node,
            frame,
        )  # fmt: skip
        return True

    def _def_value(self, handle: ClassHandle, name: str, arguments: list[Node], node: Node, frame: Frame) -> bool:
        word = constant_string(arguments[0], frame) if len(arguments) >= 2 else None
        if word is None:
            return False
        number = self._enumerator(handle, arguments[1], frame)
        self.record.members[handle.path, split_name(frame.text(arguments[1], 0))[-1]] = word
        opaque = "" if number is not None else f"the value is computed in C++: `{frame.text(arguments[1])}`"
        self.record.add(
            BindingFacts(
                handle.path, word, "constant", *name_place(node, frame), opaque=opaque, value=number,
                digest=digest_tokens([frame.file.source(arguments[1]), (number or "").encode()]),
            ),
            node,
            frame,
        )  # fmt: skip
        return True

    def _enumerator(self, handle: ClassHandle, node: Node, frame: Frame) -> str | None:
        """Number of an enumerator, counting up from the last one with a value."""
        spaces, _, last = frame.text(node, 0).rpartition("::")
        for owner in self.record.sources.classes(frame.type_text(spaces or handle.cpp), frame.place):
            number = -1
            for name, value in owner.enumerators or ():
                if value is not None:
                    written = python_value(value, lambda _: None)
                    if not written.known or not written.text.lstrip("-").isdigit():
                        return None
                    number = int(written.text)
                else:
                    number += 1
                if name == last:
                    return str(number)
        return None
