"""What a call inside a TileLang function does: TileLang's operations, torch and builtins at once, anything else on record."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import libcst as cst

from porter.surface.digest import literal_string
from porter.surface.text import dotted
from porter.surface.tilelang_access import SELF_DESCRIBING, Access, access_of, foreign_reads, is_foreign
from porter.surface.tilelang_names import TOOLS, Dialect, canonical
from porter.surface.tilelang_values import Call, Container, Derived, Guards, Scope, Solver, Terms

LineOf = Callable[[cst.CSTNode], int]

# Methods that give (a view of) what they are called on.
_VIEWS = frozenset({
    "as_strided", "chunk", "contiguous", "cpu", "cuda", "data_ptr", "detach", "diagonal", "expand", "expand_as", "flatten", "movedim", "narrow",
    "permute", "ravel", "reshape", "reshape_as", "select", "split", "squeeze", "swapaxes", "swapdims", "t", "tensor_split", "to", "transpose",
    "type", "unbind", "unflatten", "unfold", "unsqueeze", "untyped_storage", "view", "view_as", "get", "from_ptr", "items", "values", "pop",
})  # fmt: skip
_ADDS = frozenset({"append", "extend", "insert", "add", "update", "setdefault", "appendleft"})
# Packages whose functions write only through ``out=``, a trailing underscore, or not at all.
_READING_PACKAGES = frozenset({
    "torch", "numpy", "math", "operator", "os", "sys", "typing", "warnings", "logging", "time", "struct", "einops", "itertools", "copy",
    "dataclasses", "enum", "collections", "contextlib", "functools", "abc", "inspect", "re", "string", "random", "pytest", "triton",
})  # fmt: skip
_CONTAINERS = frozenset({"list", "tuple", "set", "sorted", "reversed", "frozenset", "iter", "next", "cast"})
# Functions of the tilelang package proper that compute numbers or layouts.
_HOST_HELPERS = re.compile(r"tilelang\.(cdiv|next_power_of_2|math\..*|layout\..*|utils\..*|PassConfigKey.*|dtypes\..*)")
_BUILTINS = frozenset({
    "abs", "all", "any", "bin", "bool", "bytes", "callable", "chr", "complex", "divmod", "float", "format", "hasattr", "hash", "hex", "id", "int",
    "isinstance", "issubclass", "len", "max", "min", "object", "oct", "open", "ord", "pow", "print", "range", "repr", "round", "slice", "str",
    "sum", "super", "type", "vars", "dir", "locals", "globals", "property", "delattr", "input", "breakpoint",
})  # fmt: skip


class CallReader(ABC):
    """The part of reading a function that deals with calls.

    Parameters:
        dialect: TileLang's names in the function's module.
        line_of: 1-based line of a node; asked only for what may have to be named.
    """

    def __init__(self, dialect: Dialect, line_of: LineOf) -> None:
        self._solver = Solver(dict(dialect.names))
        self._packages = dict(dialect.packages)
        self._line_of = line_of
        self._guards: Guards = ()

    @abstractmethod
    def value(self, node: cst.BaseExpression, scope: Scope) -> Terms:
        """What an expression may be; the calls inside it take effect."""

    def write(self, terms: Terms, scope: Scope) -> None:
        """Note that these may be written here."""
        scope.writes.extend((term, self._guards) for term in terms)

    def lose(self, terms: Terms, reason: str, scope: Scope) -> None:
        """Note that something got hold of these and cannot be followed."""
        scope.unknown.extend((term, reason, self._guards) for term in terms)

    def static(self, node: cst.BaseExpression, scope: Scope) -> str | None:
        """Canonical TileLang path, or ``:a.b`` for another name from outside; None for anything bound in the function."""
        name = dotted(node)
        if name is None:
            return None
        root, _, rest = name.partition(".")
        outer: Scope | None = scope
        while outer is not None:
            if root in outer.variables:
                return None
            outer = outer.parent
        base = self._solver.names.get(root)
        if base is not None:
            return canonical(f"{base}.{rest}") if rest else base
        return f":{name}"

    def call(self, node: cst.Call, scope: Scope) -> Terms:
        arguments: list[tuple[str, Terms]] = []
        for argument in node.args:
            terms = self.value(argument.value, scope)
            if argument.star:
                self._unpack(argument.star, terms, arguments)
            else:
                arguments.append((argument.keyword.value if argument.keyword is not None else "", terms))
        static = self.static(node.func, scope)
        if static is not None:
            if static.startswith("T."):
                return self._operation(static[2:], node, arguments, scope)
            if static in TOOLS:
                # tilelang.compile(kernel) and a decorator used as a function give back what they are given.
                return _argument(arguments, 0, "func", "function", "program")
            if static.startswith("tilelang"):
                return [] if _HOST_HELPERS.fullmatch(static) else self._record([("x", static)], arguments, node, scope)
            handled = self._outside(static[1:], node, arguments, scope)
            if handled is not None:
                return handled
            # A bare name may still be bound further down.
            callee: Terms = [("n", scope, static[1:])] if isinstance(node.func, cst.Name) else [("x", static[1:])]
            return self._record(callee, arguments, node, scope)
        if isinstance(node.func, cst.Attribute):
            return self._method(node, node.func, arguments, scope)
        return self._record(self.value(node.func, scope), arguments, node, scope)

    def _unpack(self, star: str, terms: Terms, arguments: list[tuple[str, Terms]]) -> None:
        known = self._solver.resolve(terms) if star == "*" else []
        if len(known) == 1 and known[0][0] == "t" and not known[0][1].rest:
            arguments.extend(("", list(item)) for item in known[0][1].items)
        else:
            arguments.append((star, items(terms)))

    def _record(self, callee: Terms, arguments: list[tuple[str, Terms]], node: cst.CSTNode, scope: Scope) -> Terms:
        scope.calls.append(Call(callee, arguments, node, self._guards))
        return [("c", scope, len(scope.calls) - 1, None)]

    def _outside(self, name: str, node: cst.Call, arguments: list[tuple[str, Terms]], scope: Scope) -> Terms | None:
        """A call of a name from outside that is known without looking it up; None where it is not."""
        root, _, rest = name.partition(".")
        if not rest:
            if name in self._packages:
                path = self._packages[name]
                return self._package(path, arguments, scope) if path.split(".")[0] in _READING_PACKAGES else None
            if name == "getattr":
                attribute = node.args[1].value if len(node.args) > 1 else None
                return [
                    Derived(
                        "a",
                        _argument(arguments, 0),
                        str(literal_string(attribute)) if isinstance(attribute, cst.SimpleString) else "*",
                    )
                ]
            if name in _CONTAINERS:
                return _argument(arguments, 1 if name == "cast" else 0)
            if name in _BUILTINS or name.endswith(("Error", "Exception", "Warning")):
                return []
            if name == "enumerate":
                return [("t", Container([], [("t", Container([[], items(_argument(arguments, 0))]))]))]
            if name == "zip":
                return [("t", Container([], [("t", Container([items(terms) for key, terms in arguments if not key]))]))]
            if name == "dict":
                return [("t", Container([], [term for _, terms in arguments for term in terms]))]
            return None
        path = self._packages.get(root, root)
        return self._package(f"{path}.{rest}", arguments, scope) if path.split(".")[0] in _READING_PACKAGES else None

    def _package(self, path: str, arguments: list[tuple[str, Terms]], scope: Scope) -> Terms | None:
        """A function of torch, math and the like: it reads, but for ``out=`` and a trailing underscore."""
        name = path.rpartition(".")[2]
        if path in ("functools.partial", "functools.wraps"):
            return None
        for keyword, terms in arguments:
            if keyword == "out":
                self.write(terms, scope)
        first = _argument(arguments, 0)
        if name.endswith("_") and not name.endswith("__"):
            self.write(first, scope)
            return first
        return first if name in _VIEWS or path == "typing.cast" else []

    def _method(self, node: cst.Call, func: cst.Attribute, arguments: list[tuple[str, Terms]], scope: Scope) -> Terms:
        receiver = self.value(func.value, scope)
        name = func.attr.value
        if name == "access_ptr":
            self._pointer(receiver, node.args[0].value if node.args else None, scope)
            return receiver
        if name == "vstore" or (name.endswith("_") and not name.startswith("_")):
            self.write(receiver, scope)
            return receiver
        for keyword, terms in arguments:
            if keyword == "out":
                self.write(terms, scope)
        if name in _ADDS:
            added = [term for _, terms in arguments for term in terms]
            put(receiver, items(added) if name in ("extend", "update") else added, scope)
            return []
        if name in _VIEWS:
            return receiver + (_argument(arguments, 1) if name in ("get", "pop") else [])
        return self._record([("m", tuple(receiver), name)], arguments, node, scope)

    def _operation(self, operation: str, node: cst.Call, arguments: list[tuple[str, Terms]], scope: Scope) -> Terms:
        self_describing = SELF_DESCRIBING.get(operation)
        if self_describing is not None:
            buffer, mode = self_describing
            terms = _argument(arguments, buffer, "buffer", "base", "data")
            self._pointer(terms, _argument_node(node, mode, "access_type", "rw_mask"), scope)
            return terms
        if is_foreign(operation):
            self._foreign(operation, node, arguments, scope)
            return []
        access = access_of(operation)
        if access is None:
            for _, terms in arguments:
                if terms:
                    self.lose(terms, f"line {self._line_of(node)}: T.{operation}", scope)
            return []
        if operation in ("prim_func", "macro", "evaluate"):
            return _argument(arguments, 0, "func")
        self.write(_written(access, operation, arguments), scope)
        return _argument(arguments, access.alias, access.parameters[access.alias]) if access.alias >= 0 else []

    def _pointer(self, terms: Terms, mode: cst.BaseExpression | None, scope: Scope) -> None:
        """``access_ptr(buffer, "rw")``: what is not clearly reading may write."""
        if isinstance(mode, cst.SimpleString) and "w" not in str(literal_string(mode)):
            return
        if isinstance(mode, cst.Integer) and not int(mode.value, 0) & 2:
            return
        self.write(terms, scope)

    def _foreign(self, operation: str, node: cst.Call, arguments: list[tuple[str, Terms]], scope: Scope) -> None:
        names = [str(literal_string(a.value)) for a in node.args if isinstance(a.value, cst.SimpleString)]
        if any(foreign_reads(name) for name in names):
            return
        for argument, (_, terms) in zip(node.args, arguments, strict=False):
            value = argument.value
            if isinstance(value, cst.Call) and self.static(value.func, scope) in _BY_MODE:
                continue
            if terms:
                # An element passed by value cannot be written through; the address of one can.
                handed: Terms = terms if isinstance(value, cst.Call) else [Derived("v", terms)]
                self.lose(handed, f"line {self._line_of(node)}: T.{operation}({', '.join(names)})", scope)

    def apply_named_operations(self, root: Scope) -> None:
        """Operations called under another name (``add = T.atomic_add``)."""
        for scope in root.all():
            for call in scope.calls:
                for found in self._solver.resolve(call.callee):
                    if found[0] == "o":
                        self._named_operation(str(found[1]), call, scope)

    def _named_operation(self, operation: str, call: Call, scope: Scope) -> None:
        access = access_of(operation)
        if access is not None:
            scope.writes.extend((term, call.guards) for term in _written(access, operation, call.arguments))
        elif not operation.startswith("tilelang"):
            reason = f"line {self._line_of(call.node)}: T.{operation}"
            scope.unknown.extend((term, reason, call.guards) for _, terms in call.arguments for term in terms)


def items(terms: Terms) -> Terms:
    """What going through these may give."""
    return [Derived("i", terms)] if terms else []


def put(base: Terms, terms: Terms, scope: Scope) -> None:
    """``container[key] = value``: only containers that the function itself made take part."""
    for term in base if terms else ():
        if not isinstance(term, Derived) and term[0] == "n":
            for inner in scope.place(term[2]).variables.get(term[2], []):
                if not isinstance(inner, Derived) and inner[0] == "t":
                    inner[1].rest.extend(terms)


_BY_MODE = frozenset(f"T.{name}" for name in SELF_DESCRIBING)


def _argument(arguments: Sequence[tuple[str, Terms]], index: int, *keywords: str) -> Terms:
    positional = [terms for keyword, terms in arguments if not keyword]
    if 0 <= index < len(positional):
        return positional[index]
    return next((terms for keyword, terms in arguments if keyword in keywords), [])


def _argument_node(node: cst.Call, index: int, *keywords: str) -> cst.BaseExpression | None:
    positional = [a.value for a in node.args if a.keyword is None and not a.star]
    if index < len(positional):
        return positional[index]
    return next((a.value for a in node.args if a.keyword is not None and a.keyword.value in keywords), None)


def _written(access: Access, operation: str, arguments: Sequence[tuple[str, Terms]]) -> Terms:
    """What an operation writes of its arguments."""
    terms = [term for index in access.written for term in _argument(arguments, index, access.parameters[index])]
    if operation in ("cumsum", "cummax", "finalize_reducer") and not _argument(arguments, 1, "dst"):
        terms += _argument(arguments, 0, "src", "reducer")
    return terms
