"""Reads registration code: every name that a pybind11 module or a ``TORCH_LIBRARY`` block binds.

The body of the module macro is walked as a small program. Calls that take a module or a class are followed into the
functions they name, wherever the sources define them. Whatever touches a module and cannot be followed is recorded as
the binding ``*`` of its scope, so nothing is dropped unseen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tree_sitter import Node

from porter.surface.cpp_classes import CLASS_MAKERS, ClassBinder
from porter.surface.cpp_frame import (
    AttributeHandle,
    ClassHandle,
    Expression,
    Frame,
    Handle,
    LibraryHandle,
    ModuleHandle,
    Pack,
    Value,
    constant_string,
    meaningful,
    resolve,
)
from porter.surface.cpp_index import CppSources
from porter.surface.cpp_library import LibraryBinder
from porter.surface.cpp_record import Recorder, innermost, join_path, name_place, scope_of
from porter.surface.cpp_source import PREPROCESSOR, CppFunction, declared_name, read_parameters, split_name
from porter.surface.cpp_tokens import one_line
from porter.surface.cpp_types import parse_type
from porter.surface.model import BindingFacts

_DEPTH = 24
_TRANSPARENT = frozenset({
    "move", "forward", "static_cast", "reinterpret_cast", "const_cast", "ref", "cref", "borrow", "reinterpret_borrow",
    "object", "handle", "module_", "module", "as_const",
})  # fmt: skip
_HARMLESS_CALLS = frozenset({"hasattr", "isinstance", "len", "print", "cast", "str", "repr", "keep_alive", "setenv"})
_HARMLESS_METHODS = frozenset({
    "doc", "ptr", "inc_ref", "dec_ref", "is_none", "release", "import", "reload", "set_python_module", "add_ostream_redirect",
    "impl_abstract_pystub", "finalize", "export_values", "def_buffer", "get_type", "attr_cast", "is",
})  # fmt: skip
_STRUCTURE = frozenset({
    "if_statement", "for_statement", "while_statement", "do_statement", "try_statement", "catch_clause", "else_clause",
    "switch_statement", "case_statement", "labeled_statement", "attributed_statement", "constexpr_if",
})  # fmt: skip
_IGNORED = frozenset({
    "comment", "preproc_def", "preproc_function_def", "preproc_call", "preproc_include", "preproc_undef", "preproc_arg",
    "static_assert_declaration", "break_statement", "continue_statement", "type_definition", "struct_specifier",
    "class_specifier", "enum_specifier", "preproc_directive", "identifier", "preproc_defined", "condition_clause",
    "number_literal",
})  # fmt: skip


class RegistrationReader:
    """Reads the registration code of one extension module into a recorder."""

    def __init__(self, sources: CppSources) -> None:
        self.record = Recorder(sources)
        self.class_binder = ClassBinder(self.record)
        self.library_binder = LibraryBinder(self.record)
        self._active: list[int] = []

    def read_module(self, frame: Frame, variable: str, body: Node) -> None:
        """Read the body of ``PYBIND11_MODULE(name, variable)``."""
        frame.variables[variable] = ModuleHandle("")
        self._block(body, frame)

    def read_library(self, frame: Frame, variable: str, namespace: str, body: Node, *, implements: bool) -> None:
        """Read the body of ``TORCH_LIBRARY(namespace, variable)`` or of a ``TORCH_LIBRARY_IMPL`` block."""
        frame.variables[variable] = LibraryHandle(namespace, implements)
        self._block(body, frame)

    def _block(self, node: Node, frame: Frame) -> None:
        for child in node.named_children:
            self._statement(child, frame)

    def _statement(self, node: Node, frame: Frame) -> None:
        kind = node.type
        if kind == "expression_statement" or kind == "return_statement":
            for child in meaningful(node):
                self._evaluate(child, frame)
        elif kind == "declaration":
            self._declaration(node, frame)
        elif kind == "compound_statement":
            self._block(node, frame.nested())
        elif kind in PREPROCESSOR:
            for child in node.named_children:
                if child not in (node.child_by_field_name("name"), node.child_by_field_name("condition")):
                    self._statement(child, frame)
        elif kind == "for_range_loop":
            self._loop(node, frame)
        elif kind in _STRUCTURE:
            self._structure(node, frame)
        elif kind == "alias_declaration":
            name, aliased = node.child_by_field_name("name"), node.child_by_field_name("type")
            if name is not None and aliased is not None:
                frame.types[frame.text(name)] = frame.type_text(frame.text(aliased, 0))
        elif kind == "using_declaration":
            text = frame.text(node, 0).rstrip(";")
            if text.startswith("using namespace "):
                frame.usings.append(split_name(text.removeprefix("using namespace ")))
        elif kind == "namespace_alias_definition" or kind in _IGNORED:
            return
        elif kind.endswith("_expression"):
            self._evaluate(node, frame)
        elif self._mentions(node, frame):
            self.record.unresolved(
                node, frame, "a construct that was not understood" if kind != "ERROR" else "cannot be parsed"
            )

    def _structure(self, node: Node, frame: Frame) -> None:
        guard = ""
        condition = node.child_by_field_name("condition")
        if node.type == "if_statement" and condition is not None:
            guard = f"if {frame.text(condition)}"
            alternative = node.child_by_field_name("alternative")
            consequence = node.child_by_field_name("consequence")
            if consequence is not None:
                self._statement(consequence, frame.nested(guard))
            if alternative is not None:
                self._statement(alternative, frame.nested(f"not ({frame.text(condition)})"))
            return
        if node.type in ("for_statement", "while_statement", "do_statement", "switch_statement"):
            guard = (
                f"in a {node.type.removesuffix('_statement')} loop"
                if node.type != "switch_statement"
                else "in a switch"
            )
        inner = frame.nested(guard)
        for child in node.named_children:
            self._statement(child, inner)

    def _loop(self, node: Node, frame: Frame) -> None:
        body, over = node.child_by_field_name("body"), node.child_by_field_name("right")
        variable = declared_name(node.child_by_field_name("declarator"))
        if body is None:
            return
        elements: list[Expression] | None = None
        if over is not None:
            found = resolve(over, frame)
            if found is not None and found.node.type == "initializer_list":
                elements = [Expression(child, found.frame) for child in meaningful(found.node)]
        if elements is None or variable is None:
            self._statement(body, frame.nested("in a loop"))
            return
        for element in elements:
            inner = frame.nested()
            inner.variables[frame.text(variable)] = element
            self._statement(body, inner)

    def _declaration(self, node: Node, frame: Frame) -> None:
        written = node.child_by_field_name("type")
        type_text = frame.type_text(frame.text(written, 0)) if written is not None else ""
        for declarator in node.children_by_field_name("declarator"):
            name = declared_name(declarator)
            value = declarator.child_by_field_name("value")
            word = frame.text(name) if name is not None else ""
            if declarator.type == "function_declarator":
                # ``py::class_<T> cls(m, name)`` reads as a function's declaration when every argument is a bare name.
                listed = declarator.child_by_field_name("parameters")
                arguments = [child for parameter in meaningful(listed) for child in meaningful(parameter)]
                if any(frame.text(child) in frame.variables for child in arguments):
                    handle = self._construct(type_text, arguments, node, frame)
                    if handle is None:
                        self.record.unresolved(node, frame, "a construct that was not understood")
                    else:
                        frame.variables[word] = handle
                continue
            if value is None:
                continue
            if value.type in ("argument_list", "initializer_list"):
                arguments = meaningful(value)
                handle = self._construct(type_text, arguments, node, frame)
                if handle is not None:
                    frame.variables[word] = handle
                elif len(arguments) == 1 and (inner := self._evaluate(arguments[0], frame)) is not None:
                    frame.variables[word] = inner
                else:
                    frame.variables[word] = Expression(value, replace(frame, variables=dict(frame.variables)))
                    if self._mentions(value, frame):
                        self.record.unresolved(node, frame, "a construct that was not understood")
                continue
            result = self._evaluate(value, frame)
            if word:
                frame.variables[word] = (
                    result if result is not None else Expression(value, replace(frame, variables=dict(frame.variables)))
                )

    def _evaluate(self, node: Node, frame: Frame) -> Handle | None:
        """Carry out an expression's bindings; the handle it gives, if it gives one."""
        kind = node.type
        if kind == "identifier":
            held = frame.variables.get(frame.text(node))
            if isinstance(held, Expression):
                found = resolve(node, frame)
                return (
                    self._evaluate(found.node, found.frame)
                    if found is not None and found.node.type == "identifier"
                    else None
                )
            return held if not isinstance(held, Pack) else None
        if kind == "parenthesized_expression" or kind == "pointer_expression":
            children = meaningful(node)
            return self._evaluate(children[-1], frame) if children else None
        if kind == "cast_expression":
            if frame.text(node.child_by_field_name("type") or node) == "void":
                return None
            value = node.child_by_field_name("value")
            return self._evaluate(value, frame) if value is not None else None
        if kind == "comma_expression":
            result: Handle | None = None
            for child in meaningful(node):
                result = self._evaluate(child, frame)
            return result
        if kind == "conditional_expression":
            for child in meaningful(node):
                self._evaluate(child, frame)
            return None
        if kind == "assignment_expression":
            return self._assignment(node, frame)
        if kind == "call_expression":
            return self._call(node, frame)
        if kind == "subscript_expression" and self._mentions(node, frame):
            self.record.unresolved(node, frame, "a subscript of a module or class")
        return None

    def _assignment(self, node: Node, frame: Frame) -> Handle | None:
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        if left is None or right is None:
            return None
        if left.type == "identifier":
            result = self._evaluate(right, frame)
            if result is not None:
                frame.variables[frame.text(left)] = result
            return result
        target = self._evaluate(left, frame)
        if isinstance(target, AttributeHandle):
            self.record.attribute(target, self._evaluate(right, frame), right, node, frame)
        return None

    def _call(self, node: Node, frame: Frame) -> Handle | None:
        function, listed = node.child_by_field_name("function"), node.child_by_field_name("arguments")
        if function is None or listed is None:
            return None
        arguments = meaningful(listed)
        if function.type == "field_expression":
            return self._method_call(node, function, arguments, frame)
        if function.type == "lambda_expression":
            return self._inline_lambda(Expression(function, frame), arguments, node, frame)
        if function.type == "identifier":
            held = resolve(function, frame)
            if held is not None and held.node.type == "lambda_expression":
                return self._inline_lambda(held, arguments, node, frame)
        text = frame.type_text(one_line(function.text or b""))
        last = parse_type(text).name.rpartition("::")[2]
        if last in CLASS_MAKERS:
            return self._construct(text, arguments, node, frame)
        if last in _TRANSPARENT and len(arguments) == 1:
            return self._evaluate(arguments[0], frame)
        handles = [self._evaluate(argument, frame) for argument in arguments]
        if not any(handle is not None for handle in handles):
            return None
        if last in ("setattr", "getattr") and len(arguments) >= 2 and handles[0] is not None:
            name = constant_string(arguments[1], frame)
            if name is not None:
                attribute = AttributeHandle(scope_of(handles[0]), name)
                if last == "setattr" and len(arguments) == 3:
                    self.record.attribute(attribute, self._evaluate(arguments[2], frame), arguments[2], node, frame)
                return attribute
        if last in _HARMLESS_CALLS:
            return None
        self._inline_function(node, function, arguments, frame)
        return None

    def _method_call(self, node: Node, function: Node, arguments: list[Node], frame: Frame) -> Handle | None:
        owner, member = function.child_by_field_name("argument"), function.child_by_field_name("field")
        if owner is None or member is None:
            return None
        handle = self._evaluate(owner, frame)
        name = (split_name(frame.text(member)) or ("",))[-1]
        if handle is None:
            if any(self._evaluate(argument, frame) is not None for argument in arguments):
                self.record.unresolved(node, frame, "a module or class is passed to an object's method")
            return None
        if name in ("attr", "attr_with_type_hint") and len(arguments) == 1:
            word = constant_string(arguments[0], frame)
            if word is None:
                self.record.unresolved(node, frame, "an attribute without a literal name")
                return None
            return AttributeHandle(scope_of(handle), word)
        if name in _HARMLESS_METHODS:
            return self._harmless(name, handle, node, frame)
        if isinstance(handle, ModuleHandle):
            return self._module_method(handle, name, arguments, node, frame)
        if isinstance(handle, ClassHandle):
            return self.class_binder.method(handle, name, arguments, node, frame)
        if isinstance(handle, LibraryHandle):
            return self.library_binder.method(handle, name, function, arguments, node, frame)
        return None

    def _harmless(self, name: str, handle: Handle, node: Node, frame: Frame) -> Handle:
        if name == "export_values" and isinstance(handle, ClassHandle):
            for one in [
                one
                for one in self.record.bindings
                if one.scope == handle.path and one.kind == "constant" and one.name != "__members__"
            ]:
                target = f"{handle.path}.{one.name}"
                self.record.add(
                    replace(one, scope=handle.outer, alias_of=target, line=frame.file.line(node)), node, frame
                )
        return handle

    def _inline_lambda(self, found: Expression, arguments: list[Node], node: Node, frame: Frame) -> Handle | None:
        declarator, body = found.node.child_by_field_name("declarator"), found.node.child_by_field_name("body")
        if body is None:
            return None
        parameters = read_parameters(declarator.child_by_field_name("parameters")) if declarator is not None else ()
        names = [(parameter.name, parameter.pack) for parameter in parameters]
        inner = replace(
            found.frame,
            variables={**found.frame.variables, **self._bind(names, arguments, frame)},
            guards=frame.guards,
            depth=frame.depth + 1,
        )
        self._enter(body, inner, node, frame)
        return None

    def _inline_function(self, node: Node, function: Node, arguments: list[Node], frame: Frame) -> None:
        name = one_line(function.text or b"")
        candidates = self.record.sources.functions(name, frame.place)
        defined = [one for one in candidates if one.body is not None]
        plain = "::".join(split_name(name))
        if not defined:
            why = "is declared but not defined in the sources" if candidates else "is not defined in the sources"
            self.record.unresolved(node, frame, f"registers through `{plain}`, which {why}")
            return
        fitting = [one for one in defined if _fits(one, len(arguments))] or defined
        guard = frame.guard(node)
        for one in fitting:
            names = [(parameter.name, parameter.pack) for parameter in one.parameters]
            inner = Frame(
                self.record.sources.expanded(one.file),
                one.qualified[:-1],
                self._bind(names, arguments, frame),
                dict(frame.types),
                tuple(part for part in [guard, one.file.guard(one.file.line(one.node))] if part),
                frame.depth + 1,
            )
            assert one.body is not None
            self._enter(one.body, inner, node, frame)

    def _enter(self, body: Node, inner: Frame, node: Node, frame: Frame) -> None:
        if inner.depth > _DEPTH or body.id in self._active:
            self.record.unresolved(node, frame, "registration calls itself")
            return
        self._active.append(body.id)
        try:
            if body.has_error:
                self._report_errors(body, inner)
            self._block(body, inner)
        finally:
            self._active.pop()

    def _report_errors(self, body: Node, frame: Frame) -> None:
        """Record errors inside expressions; those that stand as a statement are met on the walk."""
        stack = list(body.named_children)
        while stack:
            node = stack.pop(0)
            if (
                node.is_error
                and node.parent is not None
                and node.parent.type not in ("compound_statement", *PREPROCESSOR)
            ):
                self.record.unresolved(node, frame, "cannot be parsed")
            elif node.has_error:
                stack[:0] = node.children

    def _bind(self, names: Sequence[tuple[str, bool]], arguments: list[Node], frame: Frame) -> dict[str, Value]:
        values: list[Value] = []
        for argument in arguments:
            if argument.type == "parameter_pack_expansion":
                pack = meaningful(argument)
                held = frame.variables.get(frame.text(innermost(pack[0]))) if pack else None
                if isinstance(held, Pack):
                    values.extend(held.values)
                    continue
            values.append(self._value(argument, frame))
        bound: dict[str, Value] = {}
        for index, (name, pack_here) in enumerate(names):
            if pack_here:
                bound[name] = Pack(tuple(values[index:]))
                break
            if index < len(values) and name:
                bound[name] = values[index]
        return bound

    def _value(self, node: Node, frame: Frame) -> Value:
        if node.type in ("identifier", "call_expression", "pointer_expression", "field_expression"):
            inner = innermost(node)
            held = frame.variables.get(frame.text(inner)) if inner.type == "identifier" else None
            if held is not None:
                return held
            if node.type == "call_expression" and self._mentions(node, frame):
                # A call that gives a handle was carried out when the arguments were evaluated.
                function = node.child_by_field_name("function")
                if function is not None and function.type == "field_expression":
                    handle = self._peek(node, frame)
                    if handle is not None:
                        return handle
        return Expression(node, frame)

    def _peek(self, node: Node, frame: Frame) -> Handle | None:
        """The handle that an expression gives, without binding anything again."""
        count = len(self.record.bindings)
        handle = self._evaluate(node, frame)
        del self.record.bindings[count:]
        return handle

    def _mentions(self, node: Node, frame: Frame) -> bool:
        handles = {
            name.encode() for name, value in frame.variables.items() if not isinstance(value, (Expression, Pack))
        }
        stack = [node]
        while stack:
            one = stack.pop()
            if one.type in ("identifier", "type_identifier") and one.text in handles:
                return True
            if one.type == "lambda_expression":
                continue
            stack.extend(one.named_children)
        return False

    def _construct(self, type_text: str, arguments: list[Node], node: Node, frame: Frame) -> ClassHandle | None:
        if not arguments or parse_type(type_text).name.rpartition("::")[2] not in CLASS_MAKERS:
            return None
        owner = self._argument_handle(arguments[0], frame)
        if owner is None and self._mentions(arguments[0], frame):
            self.record.unresolved(node, frame, "a class in a scope that was not understood")
        return self.class_binder.construct(type_text, owner, arguments, node, frame)

    def _argument_handle(self, node: Node, frame: Frame) -> Handle | None:
        if node.type in ("identifier", "type_identifier"):
            held = frame.variables.get(frame.text(node))
            return held if not isinstance(held, (Expression, Pack)) else None
        return self._evaluate(node, frame)

    def _module_method(
        self, handle: ModuleHandle, name: str, arguments: list[Node], node: Node, frame: Frame
    ) -> Handle | None:
        word = constant_string(arguments[0], frame) if arguments else None
        if name in ("def", "def_submodule", "add_object") and word is None:
            self.record.unresolved(node, frame, "a name that is not a literal")
            return handle if name == "def" else None
        if name == "def" and len(arguments) >= 2 and word is not None:
            extras = self.record.extras(arguments[2:], frame, handle.scope)
            self.record.function(handle.scope, "function", word, arguments[1], extras, node, frame, drops_self=False)
            return handle
        if name == "def_submodule" and word is not None:
            self.record.add(BindingFacts(handle.scope, word, "module", *name_place(node, frame)), node, frame)
            return ModuleHandle(join_path(handle.scope, word))
        if name == "add_object" and len(arguments) >= 2 and word is not None:
            target = AttributeHandle(handle.scope, word)
            self.record.attribute(target, self._evaluate(arguments[1], frame), arguments[1], node, frame)
            return handle
        self.record.unresolved(node, frame, f"a module method `{name}` that is not known")
        return handle


def _fits(function: CppFunction, count: int) -> bool:
    parameters = function.parameters
    if any(parameter.pack for parameter in parameters):
        return count >= len(parameters) - 1
    needed = sum(1 for parameter in parameters if parameter.default is None)
    return needed <= count <= len(parameters)
