"""The bindings found so far, and what recording one needs: names, arguments and values looked up in the sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tree_sitter import Node

from porter.surface.cpp_callable import BoundFunction, Extras, describe, read_extras, signature_of
from porter.surface.cpp_frame import (
    AttributeHandle,
    ClassHandle,
    Expression,
    Frame,
    Handle,
    LibraryHandle,
    ModuleHandle,
    Pack,
    anchor,
    callee,
    constant_string,
    meaningful,
    resolve,
)
from porter.surface.cpp_index import CppSources
from porter.surface.cpp_parse import Name
from porter.surface.cpp_source import split_name
from porter.surface.cpp_tokens import digest_tokens, one_line
from porter.surface.cpp_values import Names, python_value
from porter.surface.model import BindingFacts

UNRESOLVED = "*"


@dataclass(frozen=True)
class Implementation:
    """A function that a ``TORCH_LIBRARY_IMPL`` block or an ``impl`` call gives an operator."""

    namespace: str
    name: str
    digest: str


class Recorder:
    """Collects the bindings of one extension module, in registration order.

    ``classes``: bound C++ types, by qualified name, with their dotted path inside the extension and the name written.
    ``members``: Python name of a bound enum's member, by the enum's path and the enumerator.
    """

    def __init__(self, sources: CppSources) -> None:
        self.sources = sources
        self.bindings: list[BindingFacts] = []
        self.implementations: list[Implementation] = []
        self.classes: dict[Name, tuple[str, str]] = {}
        self.members: dict[tuple[str, str], str] = {}

    def add(self, binding: BindingFacts, node: Node, frame: Frame) -> None:
        """Record a binding made by a call, under the conditions that the call stands under."""
        self.bindings.append(replace(binding, guard=frame.guard(node)))

    def unresolved(self, node: Node, frame: Frame, why: str) -> None:
        """Record that a piece of registration code could not be followed."""
        scope = next((scope_of(value) for value in self._handles_in(node, frame)), "")
        opaque = f"{why}: `{frame.text(node)}`"
        self.add(
            BindingFacts(scope, UNRESOLVED, "function", frame.file.name, frame.file.line(anchor(node)), opaque=opaque),
            node,
            frame,
        )

    def _handles_in(self, node: Node, frame: Frame) -> list[Handle]:
        found: list[Handle] = []
        stack = [node]
        while stack:
            one = stack.pop(0)
            held = frame.variables.get(frame.text(one)) if one.type == "identifier" else None
            if held is not None and not isinstance(held, (Expression, Pack)):
                found.append(held)
            stack.extend(one.named_children)
        return found

    def names(self, frame: Frame, scope: str = "") -> Names:
        """Lookup of constants and bound enum members for default values read in ``scope``."""

        def find(text: str) -> str | None:
            spaces, _, last = text.rpartition("::")
            if spaces:
                for owner in self.sources.classes(frame.type_text(spaces), frame.place):
                    bound = self.classes.get(owner.qualified)
                    if (
                        owner.enumerators is not None
                        and bound is not None
                        and any(name == last for name, _ in owner.enumerators)
                    ):
                        path = bound[0]
                        member = self.members.get((path, last), last)
                        return f"{relative_path(path, scope)}.{member}"
            found = {digest_tokens([one.file.source(one.value)]): one for one in self.sources.values(text, frame.place)}
            if len(found) != 1:
                return None
            only = next(iter(found.values()))
            written = one_line(only.node.text or b"")
            if "const" not in written.partition("=")[0]:
                return None
            value = python_value(sole(only.value), lambda name: find(name) if name != text else None)
            return value.text if value.known else None

        return find

    def extras(self, nodes: Sequence[Node], frame: Frame, scope: str) -> Extras:
        """Read what follows the callable in a ``def``; parameter packs are spread."""
        listed: list[Expression] = []
        for node in nodes:
            if node.type == "parameter_pack_expansion":
                pack = meaningful(node)
                held = frame.variables.get(frame.text(innermost(pack[0]))) if pack else None
                if isinstance(held, Pack):
                    listed.extend(value for value in held.values if isinstance(value, Expression))
                continue
            listed.append(Expression(node, frame))
        return read_extras(listed, lambda inner: self.names(inner, scope))

    def function(
        self,
        scope: str,
        kind: str,
        name: str,
        function: Node,
        extras: Extras,
        node: Node,
        frame: Frame,
        *,
        drops_self: bool,
    ) -> None:
        """Record a name bound to the callable that an expression denotes."""
        what = describe(function, frame, self.sources, len(extras.arguments) or None)
        self.bound(scope, kind, name, what, extras, node, frame, drops_self=drops_self)

    def bound(
        self,
        scope: str,
        kind: str,
        name: str,
        what: BoundFunction,
        extras: Extras,
        node: Node,
        frame: Frame,
        *,
        drops_self: bool,
    ) -> None:
        """Record a name bound to a callable that is described already."""
        read = signature_of(what, extras, self.sources, drops_self=drops_self)
        self.add(
            BindingFacts(
                scope,
                name,
                kind,
                *name_place(node, frame),
                read.signature,
                read.opaque,
                digest=what.digest,
                notes=read.notes,
            ),
            node,
            frame,
        )

    def attribute(self, target: AttributeHandle, source: Handle | None, value: Node, node: Node, frame: Frame) -> None:
        """Record ``target = value``; ``source`` is the handle that ``value`` gives, if it gives one."""
        line = frame.file.line(node)
        if source is not None and not isinstance(source, LibraryHandle):
            path = scope_of(source) if not isinstance(source, AttributeHandle) else join_path(source.scope, source.name)
            binding = BindingFacts(target.scope, target.name, "constant", frame.file.name, line, alias_of=path)
            self.add(binding, node, frame)
            return
        found = resolve(value, frame) or Expression(value, frame)
        inner = found.node
        if inner.type == "call_expression":
            function = inner.child_by_field_name("function")
            last = callee(function).rpartition("::")[2] if function is not None else ""
            listed = meaningful(inner.child_by_field_name("arguments"))
            if last == "cpp_function" and listed:
                extras = self.extras(listed[1:], found.frame, target.scope)
                self.function(target.scope, "function", target.name, listed[0], extras, node, frame, drops_self=False)
                return
        if inner.type == "lambda_expression":
            self.function(target.scope, "function", target.name, inner, Extras(), node, frame, drops_self=False)
            return
        written = python_value(inner, self.names(found.frame, target.scope))
        opaque = "" if written.known else f"the value is computed in C++: `{written.note}`"
        text = written.text if written.known else None
        digest = digest_tokens([found.frame.file.source(inner), *self._constant_sources(inner, found.frame)])
        self.add(
            BindingFacts(
                target.scope, target.name, "constant", frame.file.name, line, opaque=opaque, value=text, digest=digest
            ),
            node,
            frame,
        )

    def _constant_sources(self, node: Node, frame: Frame) -> list[bytes]:
        if node.type not in ("identifier", "qualified_identifier"):
            return []
        found = self.sources.values(frame.text(node, 0), frame.place)
        return sorted({one.file.source(one.node) for one in found})

    def bound_class(self, text: str, frame: Frame) -> str | None:
        """Dotted path inside the extension of a bound C++ type, None for one that is not bound."""
        for one in self.sources.classes(text, frame.place):
            bound = self.classes.get(one.qualified)
            if bound is not None:
                return bound[0]
        bound = self.classes.get(split_name(text))
        return bound[0] if bound is not None else None


def sole(node: Node) -> Node:
    """The only element of ``{x}`` or ``(x)``, which initialises as ``= x`` does."""
    children = meaningful(node)
    if node.type in ("initializer_list", "argument_list") and len(children) == 1:
        return children[0]
    return node


def innermost(node: Node) -> Node:
    """The expression inside ``std::move(x)``, ``std::forward<T>(x)``, ``&x``, ``*x`` and parentheses."""
    while True:
        if node.type in ("pointer_expression", "parenthesized_expression") and meaningful(node):
            node = meaningful(node)[-1]
            continue
        if node.type == "call_expression":
            function, arguments = node.child_by_field_name("function"), meaningful(
                node.child_by_field_name("arguments")
            )
            if (
                function is not None
                and callee(function).rpartition("::")[2] in ("move", "forward")
                and len(arguments) == 1
            ):
                node = arguments[0]
                continue
        return node


def name_place(node: Node, frame: Frame) -> tuple[str, int]:
    """File and line where a binding's name is spelled: the call's first literal, even where a helper passes it on."""
    listed = meaningful(node.child_by_field_name("arguments"))
    for argument in listed[:2]:
        if constant_string(argument, frame) is not None:
            found = resolve(argument, frame)
            if found is not None:
                return found.frame.file.name, found.frame.file.line(found.node)
    return frame.file.name, frame.file.line(listed[0] if listed else anchor(node))


def join_path(scope: str, name: str) -> str:
    """Dotted path of a name in a scope."""
    return f"{scope}.{name}" if scope else name


def scope_of(handle: Handle) -> str:
    """Dotted path inside the extension of what a handle stands for."""
    if isinstance(handle, ModuleHandle):
        return handle.scope
    if isinstance(handle, ClassHandle):
        return handle.path
    if isinstance(handle, LibraryHandle):
        return f"torch.ops.{handle.namespace}"
    return join_path(handle.scope, handle.name)


def relative_path(path: str, scope: str) -> str:
    """A dotted path as it is spelled inside ``scope`` (or a class in it)."""
    outer = path.rpartition(".")[0]
    if not outer:
        return path
    return path[len(outer) + 1 :] if scope == outer or scope.startswith(outer + ".") else path
