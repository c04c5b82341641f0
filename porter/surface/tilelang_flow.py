"""Reads the ``Flow`` of a function: what it writes, calls and gives back, in terms of its own parameters.

One walk over the function's tree, nested functions included. Reading is insensitive to order and to branches (a name may be
all that is ever assigned to it), so that what is found is what *may* happen. Aliases are followed inside the function:
plain assignment, tuples and lists, ``a if c else b``, views and reshapes, subscripts, attributes, default arguments.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from typing import Any

import libcst as cst

from porter.surface.digest import literal_string
from porter.surface.model import Flow, KernelArgument
from porter.surface.tilelang_access import SELF_DESCRIBING, Access, access_of, foreign_reads, is_foreign
from porter.surface.tilelang_names import KERNEL_DECORATORS, Dialect, canonical, imported
from porter.surface.tilelang_text import dotted_of

LineOf = Callable[[cst.CSTNode], int]

# Attributes that describe a buffer and are not the buffer.
_DESCRIPTIVE = frozenset({"shape", "dtype", "strides", "ndim", "name", "device", "size", "itemsize", "bits", "bytes", "is_cuda", "requires_grad"})
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
_CONTAINERS = frozenset({"list", "tuple", "set", "sorted", "reversed", "frozenset", "iter", "next", "getattr", "cast"})
_BUILTINS = frozenset({
    "abs", "all", "any", "bin", "bool", "bytes", "callable", "chr", "complex", "divmod", "float", "format", "hasattr", "hash", "hex", "id", "int",
    "isinstance", "issubclass", "len", "max", "min", "object", "oct", "open", "ord", "pow", "print", "range", "repr", "round", "slice", "str",
    "sum", "super", "type", "vars", "dir", "locals", "globals", "property", "delattr", "input", "breakpoint",
})  # fmt: skip

class _Derived:
    """What is got from values: a subscript (``i``), attribute (``a``), sum of containers (``+``), or them by value (``v``)."""

    __slots__ = ("element", "extra", "inner", "tag")

    def __init__(self, tag: str, inner: Sequence[_Term], extra: int | str | None = None, *, element: bool = False) -> None:
        self.tag = tag
        self.inner = tuple(inner)
        self.extra = extra
        self.element = element


# A term is what an expression may be, before names are looked up: ("n", scope, name) a name, ("p", scope, name) a parameter,
# ("f", scope) a function, ("c", scope, call, item) a call's result, ("t", container), ("x", path) a name from outside,
# ("o", operation), ("k", constant), ("m", values, name) a method of values.
type _Term = _Derived | tuple[Any, ...]
type _Terms = list[_Term]
type _Found = tuple[Any, ...]
type _Key = tuple[_Term, bool]
# Branches on a plain name that an event stands under: (the name, whether it must hold).
type _Guards = tuple[tuple[_Term, bool], ...]


class _Container:
    """A tuple, list, set or dict display: its items, and ``rest`` for what is added without a place."""

    __slots__ = ("items", "rest")

    def __init__(self, items: list[_Terms], rest: _Terms | None = None) -> None:
        self.items = items
        self.rest: _Terms = rest or []

    def all(self) -> _Terms:
        return [term for item in self.items for term in item] + self.rest


class _Call:
    __slots__ = ("arguments", "callee", "guards", "node")

    def __init__(self, callee: _Terms, arguments: list[tuple[str, _Terms]], node: cst.CSTNode, guards: _Guards) -> None:
        self.callee = callee
        self.arguments = arguments
        self.node = node
        self.guards = guards


class _Scope:
    __slots__ = (
        "calls", "children", "depth", "enclosing_names", "kept", "name", "node", "order", "own", "parameters", "parent", "references", "returns",
        "tracked", "unknown", "variables", "writes",
    )  # fmt: skip

    def __init__(self, name: str, parent: _Scope | None, node: cst.CSTNode) -> None:
        self.name = name
        self.parent = parent
        self.node = node
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.variables: dict[str, _Terms] = {}
        self.own: set[str] = set()
        self.parameters: list[str] = []
        self.references: set[str] = set()
        self.enclosing_names: set[str] = set()
        self.tracked: frozenset[str] | None = None
        self.writes: list[tuple[_Term, _Guards]] = []
        self.unknown: list[tuple[_Term, str, _Guards]] = []
        self.calls: list[_Call] = []
        self.returns: list[_Terms] = []
        self.children: list[_Scope] = []
        self.kept = False
        self.order: dict[int, int] = {}

    def place(self, name: str) -> _Scope:
        """The scope that an assignment to ``name`` here binds in (``nonlocal`` followed)."""
        scope: _Scope = self
        while name in scope.enclosing_names and scope.parent is not None:
            scope = scope.parent
        return scope


class FlowReader:
    """Reads one top-level function.

    Parameters:
        function: the function or method.
        dialect: TileLang's names in its module.
        line_of: 1-based line of a node; asked only for what may have to be named.
    """

    def __init__(self, function: cst.FunctionDef, dialect: Dialect, line_of: LineOf) -> None:
        self._names = dict(dialect.names)
        self._packages = dict(dialect.packages)
        self._line_of = line_of
        self._scopes: dict[cst.CSTNode, _Scope] = {}
        self._guards: _Guards = ()
        self._read = False
        self._solved: dict[_Key, dict[_Found, None]] = {}
        self._root = self._function(function, None)
        self._read = True

    # ------------------------------------------------------------------ results

    def flow(self, kernels: Mapping[cst.CSTNode, Sequence[KernelArgument]], *, tracked: frozenset[str] | None = None) -> Flow:
        """The function's flow.

        Parameters:
            kernels: the kernels inside that were read, each with its own arguments; their flows are kept.
            tracked: the function's parameters that may be buffers; None for all. A factory's constants are not.
        """
        self._root.tracked = tracked
        self._apply_named_operations()
        self._keep([self._root, *(self._scopes[node] for node in kernels if node in self._scopes)])
        for scope in self._all_scopes():
            scope.order = {index: place for place, index in enumerate(sorted(scope.order))}
        return self._build(self._root, kernels)

    def path_of(self, node: cst.CSTNode) -> str:
        """``/``-joined names of the nested functions that lead to ``node`` (a function inside the one that was read)."""
        scope = self._scopes.get(node)
        names: list[str] = []
        while scope is not None and scope.parent is not None:
            names.append(scope.name)
            scope = scope.parent
        return "/".join(reversed(names))

    def calls_any(self, node: cst.CSTNode, makers: frozenset[str]) -> bool:
        """Does a nested function call a kernel: one defined here, or the result of one of ``makers`` or of ``*_tl``?"""
        scope = self._scopes.get(node)
        return scope is not None and any(self._gives_kernel(call.callee, makers, 3) for call in scope.calls)

    def _gives_kernel(self, callee: _Terms, makers: frozenset[str], depth: int) -> bool:
        for term in self._resolve(callee):
            if term[0] == "x" and (term[1] in makers or str(term[1]).endswith("_tl")):
                return True
            if term[0] == "f":
                assert isinstance(term[1], _Scope)
                if isinstance(term[1].node, cst.FunctionDef) and is_kernel(term[1].node, Dialect(self._names)):
                    return True
            if term[0] == "c" and depth:
                assert isinstance(term[1], _Scope) and isinstance(term[2], int)
                if self._gives_kernel(term[1].calls[term[2]].callee, makers, depth - 1):
                    return True
        return False

    # ------------------------------------------------------------------ statements

    def _function(self, node: cst.FunctionDef, parent: _Scope | None) -> _Scope:
        scope = self._open(node.name.value, parent, node, node.params)
        guards, self._guards = self._guards, ()
        self._block(node.body, scope)
        self._guards = guards
        return scope

    def _open(self, name: str, parent: _Scope | None, node: cst.CSTNode, params: cst.Parameters) -> _Scope:
        if parent is not None:
            taken = {child.name for child in parent.children}
            serial, base = 2, name
            while name in taken:
                name = f"{base}~{serial}"
                serial += 1
        scope = _Scope(name, parent, node)
        if parent is not None:
            parent.children.append(scope)
        self._scopes[node] = scope
        for param in (*params.posonly_params, *params.params):
            self._parameter(param, scope, "")
        if isinstance(params.star_arg, cst.Param):
            self._parameter(params.star_arg, scope, "*")
        elif params.kwonly_params:
            scope.parameters.append("*")
        for param in params.kwonly_params:
            self._parameter(param, scope, "")
        if params.star_kwarg is not None:
            self._parameter(params.star_kwarg, scope, "**")
        return scope

    def _parameter(self, param: cst.Param, scope: _Scope, star: str) -> None:
        name = param.name.value
        scope.parameters.append(star + name)
        scope.own.add(name)
        terms = scope.variables.setdefault(name, [])
        terms.append(("p", scope, name))
        if param.default is not None and scope.parent is not None:
            terms.extend(self._value(param.default, scope.parent))
        if param.annotation is not None:
            written = param.annotation.annotation
            base = written.value if isinstance(written, cst.Subscript) else written
            if self._static(base, scope) in ("T.Ref", "T.Var"):
                scope.references.add(name)

    def _block(self, body: cst.BaseSuite | cst.Else | cst.Finally, scope: _Scope) -> None:
        if isinstance(body, (cst.Else, cst.Finally)):
            body = body.body
        for statement in body.body:
            if isinstance(statement, cst.SimpleStatementLine):
                for small in statement.body:
                    handler = _SMALL.get(type(small))
                    if handler is not None:
                        handler(self, small, scope)
            else:
                handler = _COMPOUND.get(type(statement)) or _SMALL.get(type(statement))
                if handler is not None:
                    handler(self, statement, scope)

    def _if(self, node: cst.If, scope: _Scope) -> None:
        self._value(node.test, scope)
        outer = self._guards
        guard = _guard(node.test, scope)
        if guard is not None:
            self._guards = (*outer, guard)
        self._block(node.body, scope)
        if guard is not None:
            self._guards = (*outer, (guard[0], not guard[1]))
        if isinstance(node.orelse, cst.If):
            self._if(node.orelse, scope)
        elif node.orelse is not None:
            self._block(node.orelse, scope)
        self._guards = outer

    def _write(self, terms: _Terms, scope: _Scope) -> None:
        scope.writes.extend((term, self._guards) for term in terms)

    def _lose(self, terms: _Terms, reason: str, scope: _Scope) -> None:
        scope.unknown.extend((term, reason, self._guards) for term in terms)

    def _for(self, node: cst.For, scope: _Scope) -> None:
        self._bind(node.target, self._items(self._value(node.iter, scope)), scope)
        self._block(node.body, scope)
        if node.orelse is not None:
            self._block(node.orelse, scope)

    def _while(self, node: cst.While, scope: _Scope) -> None:
        self._value(node.test, scope)
        self._block(node.body, scope)
        if node.orelse is not None:
            self._block(node.orelse, scope)

    def _with(self, node: cst.With, scope: _Scope) -> None:
        for item in node.items:
            terms = self._value(item.item, scope)
            if item.asname is not None:
                self._bind(item.asname.name, terms, scope)
        self._block(node.body, scope)

    def _try(self, node: cst.Try | cst.TryStar, scope: _Scope) -> None:
        self._block(node.body, scope)
        for handler in node.handlers:
            self._block(handler.body, scope)
        for part in (node.orelse, node.finalbody):
            if part is not None:
                self._block(part, scope)

    def _match(self, node: cst.Match, scope: _Scope) -> None:
        subject = self._value(node.subject, scope)
        for case in node.cases:
            for name in _captured(case.pattern):
                self._bind(cst.Name(name), subject, scope)
            if case.guard is not None:
                self._value(case.guard, scope)
            self._block(case.body, scope)

    def _nested(self, node: cst.FunctionDef, scope: _Scope) -> None:
        child = self._function(node, scope)
        place = scope.place(node.name.value)
        place.variables.setdefault(node.name.value, []).append(("f", child))

    def _class(self, node: cst.ClassDef, scope: _Scope) -> None:
        # Its methods are not followed: whoever hands a buffer to an instance is told so.
        scope.variables.setdefault(node.name.value, []).append(("x", node.name.value))

    def _assign(self, node: cst.Assign, scope: _Scope) -> None:
        terms = self._value(node.value, scope)
        for target in node.targets:
            self._bind(target.target, terms, scope, stores=True)

    def _annotated(self, node: cst.AnnAssign, scope: _Scope) -> None:
        if node.value is not None:
            self._bind(node.target, self._value(node.value, scope), scope, stores=True)

    def _augmented(self, node: cst.AugAssign, scope: _Scope) -> None:
        terms = self._value(node.value, scope)
        if isinstance(node.target, cst.Name):
            name = node.target.value
            if name in scope.references:
                self._write([("p", scope, name)], scope)
            elif isinstance(node.operator, cst.AddAssign):
                scope.place(name).variables.setdefault(name, []).append(_Derived("+", terms))
        else:
            self._bind(node.target, [], scope, stores=True)

    def _expression(self, node: cst.Expr, scope: _Scope) -> None:
        self._value(node.value, scope)

    def _return(self, node: cst.Return, scope: _Scope) -> None:
        if node.value is not None:
            scope.returns.append(self._value(node.value, scope))

    def _assert(self, node: cst.Assert, scope: _Scope) -> None:
        self._value(node.test, scope)

    def _nonlocal(self, node: cst.Nonlocal | cst.Global, scope: _Scope) -> None:
        scope.enclosing_names.update(item.name.value for item in node.names)

    def _import(self, node: cst.Import | cst.ImportFrom, scope: _Scope) -> None:
        for local, path in imported(node):
            if path.split(".")[0] == "tilelang":
                self._names[local] = canonical(path)
            else:
                scope.variables.setdefault(local, []).append(("x", path))

    # ------------------------------------------------------------------ binding

    def _bind(self, target: cst.CSTNode, terms: _Terms, scope: _Scope, *, stores: bool = False) -> None:
        if isinstance(target, cst.Name):
            name = target.value
            if stores and name in scope.references:
                self._write([("p", scope, name)], scope)
            else:
                scope.place(name).variables.setdefault(name, []).extend(terms)
        elif isinstance(target, (cst.Tuple, cst.List)):
            elements = target.elements
            starred = next((i for i, e in enumerate(elements) if isinstance(e, cst.StarredElement)), None)
            for index, element in enumerate(elements):
                known = index if starred is None or index < starred else None
                self._bind(element.value, [_Derived("i", terms, known)] if terms else [], scope, stores=stores)
        elif isinstance(target, cst.Subscript):
            base = self._value(target.value, scope)
            for element in target.slice:
                self._slice(element.slice, scope)
            if stores:
                self._write(base, scope)
                self._put(base, terms, scope)
        elif isinstance(target, cst.Attribute):
            base = self._value(target.value, scope)
            if stores and terms and isinstance(target.value, cst.Name):
                name = target.value.value
                scope.place(name).variables.setdefault(name, []).extend(terms)
            del base
        elif isinstance(target, cst.StarredElement):
            self._bind(target.value, terms, scope, stores=stores)

    def _put(self, base: _Terms, terms: _Terms, scope: _Scope) -> None:
        """``container[key] = value``: only containers that the function itself made take part."""
        if not terms:
            return
        for term in base:
            if not isinstance(term, _Derived) and term[0] == "n":
                for inner in scope.place(term[2]).variables.get(term[2], []):
                    if not isinstance(inner, _Derived) and inner[0] == "t":
                        inner[1].rest.extend(terms)

    def _items(self, terms: _Terms) -> _Terms:
        return [_Derived("i", terms)] if terms else []

    # ------------------------------------------------------------------ expressions

    def _value(self, node: cst.BaseExpression, scope: _Scope) -> _Terms:
        kind = type(node)
        if kind is cst.Name:
            return [("n", scope, node.value)]  # type: ignore[attr-defined]
        if kind is cst.Call:
            return self._call(node, scope)  # type: ignore[arg-type]
        handler = _VALUES.get(kind)
        return [] if handler is None else handler(self, node, scope)

    def _attribute(self, node: cst.Attribute, scope: _Scope) -> _Terms:
        attribute = node.attr.value
        if attribute in _DESCRIPTIVE:
            self._value(node.value, scope)
            return []
        terms = self._value(node.value, scope)
        return [_Derived("a", terms, attribute)] if terms else []

    def _subscript(self, node: cst.Subscript, scope: _Scope) -> _Terms:
        terms = self._value(node.value, scope)
        for element in node.slice:
            self._slice(element.slice, scope)
        if not terms:
            return []
        element = not any(isinstance(part.slice, cst.Slice) for part in node.slice)
        return [_Derived("i", terms, _constant_index(node), element=element)]

    def _slice(self, node: cst.BaseSlice, scope: _Scope) -> None:
        if isinstance(node, cst.Index):
            self._value(node.value, scope)
        elif isinstance(node, cst.Slice):
            for part in (node.lower, node.upper, node.step):
                if part is not None:
                    self._value(part, scope)

    def _display(self, node: cst.Tuple | cst.List | cst.Set, scope: _Scope) -> _Terms:
        items: list[_Terms] = []
        rest: _Terms = []
        for element in node.elements:
            terms = self._value(element.value, scope)
            if isinstance(element, cst.StarredElement) or rest:
                rest.extend(self._items(terms) if isinstance(element, cst.StarredElement) else terms)
            else:
                items.append(terms)
        return [("t", _Container(items, rest))]

    def _dict(self, node: cst.Dict, scope: _Scope) -> _Terms:
        rest: _Terms = []
        for element in node.elements:
            if isinstance(element, cst.DictElement):
                rest.extend(self._value(element.key, scope))
            rest.extend(self._value(element.value, scope))
        return [("t", _Container([], rest))]

    def _conditional(self, node: cst.IfExp, scope: _Scope) -> _Terms:
        self._value(node.test, scope)
        return self._value(node.body, scope) + self._value(node.orelse, scope)

    def _boolean(self, node: cst.BooleanOperation, scope: _Scope) -> _Terms:
        return self._value(node.left, scope) + self._value(node.right, scope)

    def _binary(self, node: cst.BinaryOperation, scope: _Scope) -> _Terms:
        left, right = self._value(node.left, scope), self._value(node.right, scope)
        # ``args + (x,)`` joins containers; every other arithmetic makes a number.
        return [_Derived("+", left + right)] if isinstance(node.operator, cst.Add) and (left or right) else []

    def _unary(self, node: cst.UnaryOperation, scope: _Scope) -> _Terms:
        self._value(node.expression, scope)
        return []

    def _comparison(self, node: cst.Comparison, scope: _Scope) -> _Terms:
        self._value(node.left, scope)
        for target in node.comparisons:
            self._value(target.comparator, scope)
        return []

    def _walrus(self, node: cst.NamedExpr, scope: _Scope) -> _Terms:
        terms = self._value(node.value, scope)
        self._bind(node.target, terms, scope)
        return terms

    def _lambda(self, node: cst.Lambda, scope: _Scope) -> _Terms:
        child = self._open("<lambda>", scope, node, node.params)
        child.returns.append(self._value(node.body, child))
        return [("f", child)]

    def _comprehension(self, node: cst.ListComp | cst.SetComp | cst.GeneratorExp | cst.DictComp, scope: _Scope) -> _Terms:
        loop: cst.CompFor | None = node.for_in
        while loop is not None:
            self._bind(loop.target, self._items(self._value(loop.iter, scope)), scope)
            for condition in loop.ifs:
                self._value(condition.test, scope)
            loop = loop.inner_for_in
        if isinstance(node, cst.DictComp):
            return [("t", _Container([], self._value(node.key, scope) + self._value(node.value, scope)))]
        return [("t", _Container([], self._value(node.elt, scope)))]

    def _await(self, node: cst.Await, scope: _Scope) -> _Terms:
        return self._value(node.expression, scope)

    # ------------------------------------------------------------------ calls

    def _static(self, node: cst.BaseExpression, scope: _Scope) -> str | None:
        """Canonical TileLang path, or ``:a.b`` for another name from outside; None for anything bound in the function."""
        dotted = dotted_of(node)
        if dotted is None:
            return None
        root, _, rest = dotted.partition(".")
        outer: _Scope | None = scope
        while outer is not None:
            if root in outer.variables:
                return None
            outer = outer.parent
        base = self._names.get(root)
        if base is not None:
            return canonical(f"{base}.{rest}") if rest else base
        return f":{dotted}"

    def _call(self, node: cst.Call, scope: _Scope) -> _Terms:
        arguments: list[tuple[str, _Terms]] = []
        for argument in node.args:
            terms = self._value(argument.value, scope)
            if argument.star:
                self._unpack(argument.star, terms, arguments)
            else:
                arguments.append((argument.keyword.value if argument.keyword is not None else "", terms))
        static = self._static(node.func, scope)
        if static is not None:
            if static.startswith("T."):
                return self._operation(static[2:], node, arguments, scope)
            if static.startswith("tilelang"):
                # tilelang.compile(kernel) and a decorator used as a function give back what they are given.
                return _argument(arguments, 0, "func", "function", "program")
            handled = self._outside(static[1:], arguments, scope)
            if handled is not None:
                return handled
            return self._record([("x", static[1:])], arguments, node, scope)
        if isinstance(node.func, cst.Attribute):
            return self._method(node, node.func, arguments, scope)
        return self._record(self._value(node.func, scope), arguments, node, scope)

    def _unpack(self, star: str, terms: _Terms, arguments: list[tuple[str, _Terms]]) -> None:
        known = self._resolve(terms) if star == "*" else []
        if len(known) == 1 and known[0][0] == "t" and not known[0][1].rest:
            arguments.extend(("", list(item)) for item in known[0][1].items)
        else:
            arguments.append((star, self._items(terms)))

    def _record(self, callee: _Terms, arguments: list[tuple[str, _Terms]], node: cst.CSTNode, scope: _Scope) -> _Terms:
        scope.calls.append(_Call(callee, arguments, node, self._guards))
        return [("c", scope, len(scope.calls) - 1, None)]

    def _outside(self, dotted: str, arguments: list[tuple[str, _Terms]], scope: _Scope) -> _Terms | None:
        """A call of a name from outside that is known without looking it up; None where it is not."""
        root, _, rest = dotted.partition(".")
        if not rest:
            if dotted in self._packages:
                path = self._packages[dotted]
                return self._package(path, arguments, scope) if path.split(".")[0] in _READING_PACKAGES else None
            if dotted in _CONTAINERS:
                return _argument(arguments, 1 if dotted == "cast" else 0)
            if dotted in _BUILTINS or dotted.endswith(("Error", "Exception", "Warning")):
                return []
            if dotted == "enumerate":
                return [("t", _Container([], [("t", _Container([[], self._items(_argument(arguments, 0))]))]))]
            if dotted == "zip":
                return [("t", _Container([], [("t", _Container([self._items(terms) for key, terms in arguments if not key]))]))]
            if dotted == "dict":
                return [("t", _Container([], [term for _, terms in arguments for term in terms]))]
            return None
        path = self._packages.get(root, root)
        return self._package(f"{path}.{rest}", arguments, scope) if path.split(".")[0] in _READING_PACKAGES else None

    def _package(self, path: str, arguments: list[tuple[str, _Terms]], scope: _Scope) -> _Terms | None:
        """A function of torch, math and the like: it reads, but for ``out=`` and a trailing underscore."""
        name = path.rpartition(".")[2]
        if path in ("functools.partial", "functools.wraps"):
            return None
        for keyword, terms in arguments:
            if keyword == "out":
                self._write(terms, scope)
        first = _argument(arguments, 0)
        if name.endswith("_") and not name.endswith("__"):
            self._write(first, scope)
            return first
        return first if name in _VIEWS or path == "typing.cast" else []

    def _method(self, node: cst.Call, func: cst.Attribute, arguments: list[tuple[str, _Terms]], scope: _Scope) -> _Terms:
        receiver = self._value(func.value, scope)
        name = func.attr.value
        if name == "access_ptr":
            self._pointer(receiver, node.args[0].value if node.args else None, scope)
            return receiver
        if name == "vstore" or (name.endswith("_") and not name.startswith("_")):
            self._write(receiver, scope)
            return receiver
        for keyword, terms in arguments:
            if keyword == "out":
                self._write(terms, scope)
        if name in _ADDS:
            added = [term for _, terms in arguments for term in terms]
            self._put(receiver, self._items(added) if name in ("extend", "update") else added, scope)
            return []
        if name in _VIEWS:
            return receiver + (_argument(arguments, 1) if name in ("get", "pop") else [])
        return self._record([("m", tuple(receiver), name)], arguments, node, scope)

    def _operation(self, operation: str, node: cst.Call, arguments: list[tuple[str, _Terms]], scope: _Scope) -> _Terms:
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
                    self._lose(terms, f"line {self._line_of(node)}: T.{operation}", scope)
            return []
        if operation in ("prim_func", "macro", "evaluate"):
            return _argument(arguments, 0, "func")
        self._write(_written(access, operation, arguments), scope)
        return _argument(arguments, access.alias, access.parameters[access.alias]) if access.alias >= 0 else []

    def _pointer(self, terms: _Terms, mode: cst.BaseExpression | None, scope: _Scope) -> None:
        """``access_ptr(buffer, "rw")``: what is not clearly reading may write."""
        if isinstance(mode, cst.SimpleString) and "w" not in str(literal_string(mode)):
            return
        if isinstance(mode, cst.Integer) and not int(mode.value, 0) & 2:
            return
        self._write(terms, scope)

    def _foreign(self, operation: str, node: cst.Call, arguments: list[tuple[str, _Terms]], scope: _Scope) -> None:
        names = [str(literal_string(a.value)) for a in node.args if isinstance(a.value, cst.SimpleString)]
        if any(foreign_reads(name) for name in names):
            return
        for argument, (_, terms) in zip(node.args, arguments, strict=False):
            value = argument.value
            if isinstance(value, cst.Call) and self._static(value.func, scope) in _BY_MODE:
                continue
            if terms:
                # An element passed by value cannot be written through; the address of one can.
                handed = terms if isinstance(value, cst.Call) else [_Derived("v", terms)]
                self._lose(handed, f"line {self._line_of(node)}: T.{operation}({', '.join(names)})", scope)

    # ------------------------------------------------------------------ solving

    def _resolve(self, terms: Sequence[_Term]) -> list[_Found]:
        """What terms come down to: parameters, functions, call results, containers, outside names, operations."""
        out: dict[_Found, None] = {}
        for term in terms:
            if not isinstance(term, _Derived) and term[0] != "n":
                out[term] = None
            else:
                out.update(self._solve((term, False)))
        return list(out)

    def _solve(self, wanted: _Key) -> dict[_Found, None]:
        """Least fixpoint over all that ``wanted`` depends on; kept once the function has been read to its end."""
        memo = self._solved if self._read else {}
        if wanted in memo:
            return memo[wanted]
        table: dict[_Key, dict[_Found, None]] = {wanted: {}}

        def get(term: _Term, pointers: bool) -> Iterable[_Found]:
            if not isinstance(term, _Derived) and term[0] != "n":
                return (term,)
            key = (term, pointers)
            return memo[key] if key in memo else table.setdefault(key, {})

        size = -1
        while size != (size := len(table) + sum(map(len, table.values()))):
            for key in list(table):
                term, pointers = key
                found = table[key]
                if not isinstance(term, _Derived):
                    for inner in self._lookup(term):
                        found.update(dict.fromkeys(get(inner, pointers)))
                    continue
                by_value = pointers or term.tag == "v"
                for inner in term.inner:
                    for value in list(get(inner, by_value)):
                        # By value, an element that was read out of a buffer is a number and leads nowhere.
                        if not (by_value and term.element and value[0] in ("p", "c")):
                            for derived in _derive(term, value):
                                found.update(dict.fromkeys(get(derived, pointers)))
        memo.update(table)
        return table[wanted]

    def _lookup(self, term: _Found) -> _Terms:
        """Everything that a name may stand for."""
        scope, name = term[1], term[2]
        owner: _Scope | None = scope.place(name)
        while owner is not None and name not in owner.variables:
            owner = owner.parent
        if owner is not None:
            return owner.variables[name]
        path = self._names.get(name)
        if path is not None:
            return [("o", path[2:] if path.startswith("T.") else path)]
        return [("k", name) if name in _CONSTANTS else ("x", name)]

    def _flat(self, terms: Sequence[_Term]) -> list[_Found]:
        """``_resolve`` with containers opened."""
        out: dict[_Found, None] = {}
        opened: set[_Container] = set()
        stack: Sequence[_Term] = terms
        while stack:
            further: _Terms = []
            for found in self._resolve(stack):
                if found[0] != "t":
                    out[found] = None
                elif found[1] not in opened:
                    opened.add(found[1])
                    further.extend(found[1].all())
            stack = further
        return list(out)

    def _all_scopes(self) -> Iterator[_Scope]:
        stack = [self._root]
        while stack:
            scope = stack.pop()
            yield scope
            stack.extend(scope.children)

    def _apply_named_operations(self) -> None:
        """Operations called under another name (``add = T.atomic_add``)."""
        for scope in self._all_scopes():
            for call in scope.calls:
                for found in self._resolve(call.callee):
                    if found[0] == "o":
                        operation = str(found[1])
                        access = access_of(operation)
                        if access is not None:
                            scope.writes.extend((term, call.guards) for term in _written(access, operation, call.arguments))
                        elif not operation.startswith("tilelang"):
                            reason = f"line {self._line_of(call.node)}: T.{operation}"
                            scope.unknown.extend((term, reason, call.guards) for _, terms in call.arguments for term in terms)

    # ------------------------------------------------------------------ writing down

    def _matters(self, term: _Term) -> bool:
        if term[0] == "p":
            owner = term[1]
            assert isinstance(owner, _Scope)
            return owner.tracked is None or term[2] in owner.tracked
        return term[0] in ("f", "c")

    def _keep(self, roots: Sequence[_Scope]) -> None:
        """Mark the nested functions and calls that the flow needs."""
        pending: list[_Scope] = []

        def keep_terms(terms: Sequence[_Term]) -> None:
            for term in self._flat(terms):
                if term[0] == "f":
                    assert isinstance(term[1], _Scope)
                    keep_scope(term[1])
                elif term[0] == "c":
                    assert isinstance(term[1], _Scope) and isinstance(term[2], int)
                    keep_call(term[1], term[2])

        def keep_scope(scope: _Scope) -> None:
            if not scope.kept:
                scope.kept = True
                pending.append(scope)
                if scope.parent is not None:
                    keep_scope(scope.parent)

        def keep_call(scope: _Scope, index: int) -> None:
            if index not in scope.order:
                scope.order[index] = 0
                call = scope.calls[index]
                keep_terms(call.callee)
                for _, terms in call.arguments:
                    keep_terms(terms)
                for term in self._resolve(call.callee):
                    if term[0] == "m":
                        keep_terms(term[1])  # type: ignore[arg-type]

        for root in roots:
            keep_scope(root)
        while pending:
            scope = pending.pop()
            keep_terms([term for term, _ in scope.writes])
            keep_terms([term for term, _, _ in scope.unknown])
            for terms in scope.returns:
                keep_terms(terms)
            for child in scope.children:
                if isinstance(child.node, cst.FunctionDef) and is_kernel(child.node, Dialect(self._names)):
                    keep_scope(child)
            for index, call in enumerate(scope.calls):
                callee = self._resolve(call.callee)
                if any(term[0] in ("f", "p", "c") for term in callee) or any(
                    self._matters(term) for _, terms in call.arguments for term in self._flat(terms)
                ):
                    keep_call(scope, index)

    def _encode(self, terms: Sequence[_Term], scope: _Scope) -> str:
        words: dict[str, None] = {}
        for term in self._flat(terms):
            word = self._word(term, scope)
            if word:
                words[word] = None
        return " ".join(sorted(words))

    def _word(self, term: _Term, scope: _Scope, *, flags: bool = False) -> str:
        tag = term[0]
        if tag == "x":
            return f":{term[1]}"
        if tag == "o":
            return f"%{term[1]}"
        if tag == "k":
            return f"={term[1]}"
        if tag == "m":
            receiver = self._encode(term[1], scope)  # type: ignore[arg-type]
            return " ".join(f"{word}!{term[2]}" for word in receiver.split()) or f"!{term[2]}"
        if tag == "f":
            child = term[1]
            assert isinstance(child, _Scope)
            owner, text = child.parent, f"@{child.name}"
        else:
            assert isinstance(term[1], _Scope)
            owner = term[1]
            if tag == "p":
                if not (self._matters(term) or flags):
                    return ""
                text = str(term[2])
            elif tag == "c":
                index = owner.order.get(term[2])  # type: ignore[call-overload]
                if index is None:
                    return ""
                text = f"#{index}" if term[3] is None else f"#{index}.{term[3]}"
            else:
                return ""
        steps, at = 0, scope
        while at is not owner:
            if at.parent is None:
                return ""
            at = at.parent
            steps += 1
        return "^" * steps + text

    def _build(self, scope: _Scope, kernels: Mapping[cst.CSTNode, Sequence[KernelArgument]]) -> Flow:
        calls = []
        lines = []
        for index in scope.order:
            call = scope.calls[index]
            callee = self._encode(call.callee, scope)
            rows = [(keyword, self._encode(terms, scope)) for keyword, terms in call.arguments]
            while rows and not rows[-1][1]:
                rows.pop()
            outside = (":" in callee or "!" in callee) and any(value.strip("=TrueFalsNo") for _, value in rows)
            lines.append(self._line_of(call.node) if outside else 0)
            calls.append((callee + self._suffix(call.guards, scope), tuple(row for row in rows if row[1] or not row[0])))
        written = self._events([(term, guards, "") for term, guards in scope.writes], scope)
        unknown = self._events([(term, guards, reason) for term, reason, guards in scope.unknown], scope)
        nested = tuple((child.name, self._build(child, kernels)) for child in scope.children if child.kept)
        own = tuple(kernels.get(scope.node, ()))
        flow = Flow(written, tuple(calls), (), unknown, self._returns(scope), nested, tuple(lines) if any(lines) else (), own)
        return flow if flow == Flow() else dataclasses.replace(flow, parameters=tuple(scope.parameters))

    def _events(self, events: Sequence[tuple[_Term, _Guards, str]], scope: _Scope) -> tuple[str, ...]:
        """Encoded events, those left out that happen anyway, without a condition."""
        found: dict[tuple[str, str, str], None] = {}
        for term, guards, reason in events:
            for word in self._encode([term], scope).split():
                if word.lstrip("^")[0] not in ":%@=":
                    found[word, self._suffix(guards, scope), reason] = None
        return tuple(
            sorted(f"{word}{suffix}{'|' if reason else ''}{reason}" for word, suffix, reason in found if not suffix or (word, "", reason) not in found)
        )

    def _suffix(self, guards: _Guards, scope: _Scope) -> str:
        """``?flag`` or ``?-flag`` for each condition on a parameter."""
        words: dict[str, None] = {}
        for term, holds in guards:
            resolved = self._resolve([term])
            if len(resolved) == 1 and resolved[0][0] == "p":
                word = self._word(resolved[0], scope, flags=True)
                if word:
                    words[f"?{'' if holds else '-'}{word}"] = None
        return "".join(sorted(words))

    def _returns(self, scope: _Scope) -> tuple[str, ...]:
        whole: _Terms = []
        items: list[_Terms] = []
        for terms in scope.returns:
            for found in self._resolve(terms):
                container = found[1] if found[0] == "t" else None
                if isinstance(container, _Container) and not container.rest:
                    for index, item in enumerate(container.items):
                        if index == len(items):
                            items.append([])
                        items[index].extend(item)
                else:
                    whole.append(found)
        encoded = [self._encode(terms, scope) for terms in (whole, *items)]
        while encoded and not encoded[-1]:
            encoded.pop()
        return tuple(encoded)


def is_kernel(function: cst.FunctionDef, dialect: Dialect) -> bool:
    """Is the function decorated with T.prim_func?"""
    return any(dialect.of(decorator.decorator) in KERNEL_DECORATORS for decorator in function.decorators)


_CONSTANTS = frozenset({"True", "False", "None"})
_BY_MODE = frozenset(f"T.{name}" for name in SELF_DESCRIBING)


def _argument(arguments: Sequence[tuple[str, _Terms]], index: int, *keywords: str) -> _Terms:
    positional = [terms for keyword, terms in arguments if not keyword]
    if 0 <= index < len(positional):
        return positional[index]
    return next((terms for keyword, terms in arguments if keyword in keywords), [])


def _argument_node(node: cst.Call, index: int, *keywords: str) -> cst.BaseExpression | None:
    positional = [a.value for a in node.args if a.keyword is None and not a.star]
    if index < len(positional):
        return positional[index]
    return next((a.value for a in node.args if a.keyword is not None and a.keyword.value in keywords), None)


def _written(access: Access, operation: str, arguments: Sequence[tuple[str, _Terms]]) -> _Terms:
    """What an operation writes of its arguments."""
    terms = [term for index in access.written for term in _argument(arguments, index, access.parameters[index])]
    if operation in ("cumsum", "cummax", "finalize_reducer") and not _argument(arguments, 1, "dst"):
        terms += _argument(arguments, 0, "src", "reducer")
    return terms


def _guard(test: cst.BaseExpression, scope: _Scope) -> tuple[_Term, bool] | None:
    """``if flag`` and ``if not flag``: the only conditions that a caller's constant decides."""
    holds = True
    while isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        test, holds = test.expression, not holds
    return (("n", scope, test.value), holds) if isinstance(test, cst.Name) else None


def _constant_index(node: cst.Subscript) -> int | None:
    if len(node.slice) != 1:
        return None
    part = node.slice[0].slice
    if not isinstance(part, cst.Index):
        return None
    value = part.value
    sign = 1
    if isinstance(value, cst.UnaryOperation) and isinstance(value.operator, cst.Minus):
        value, sign = value.expression, -1
    return sign * int(value.value.replace("_", ""), 0) if isinstance(value, cst.Integer) else None


def _derive(term: _Derived, found: _Found) -> _Terms:
    """One value under a subscript, an attribute, a sum of containers, or by value."""
    tag, kind, extra = term.tag, found[0], term.extra
    if tag == "v":
        return [found]
    if kind == "t":
        container: _Container = found[1]
        if tag == "+":
            return [found]
        if tag == "a":
            return []
        if isinstance(extra, int) and not container.rest and -len(container.items) <= extra < len(container.items):
            return container.items[extra]
        return container.all()
    if tag == "+":
        return []
    if kind == "c":
        return [("c", found[1], found[2], extra)] if tag == "i" and found[3] is None and isinstance(extra, int) else [found]
    if kind == "p":
        return [found]
    if tag == "a" and kind == "x":
        return [("x", f"{found[1]}.{extra}")]
    if tag == "a" and kind == "o":
        return [("o", str(extra) if found[1] == "T" else f"{found[1]}.{extra}")]
    return []


def _captured(pattern: cst.CSTNode) -> Iterator[str]:
    if isinstance(pattern, cst.MatchAs):
        if pattern.name is not None:
            yield pattern.name.value
        if pattern.pattern is not None:
            yield from _captured(pattern.pattern)
        return
    for child in pattern.children:
        if not isinstance(child, cst.BaseExpression):
            yield from _captured(child)


_SMALL: dict[type, Callable[..., None]] = {
    cst.Assign: FlowReader._assign,
    cst.AnnAssign: FlowReader._annotated,
    cst.AugAssign: FlowReader._augmented,
    cst.Expr: FlowReader._expression,
    cst.Return: FlowReader._return,
    cst.Assert: FlowReader._assert,
    cst.Nonlocal: FlowReader._nonlocal,
    cst.Global: FlowReader._nonlocal,
    cst.Import: FlowReader._import,
    cst.ImportFrom: FlowReader._import,
}
_COMPOUND: dict[type, Callable[..., None]] = {
    cst.If: FlowReader._if,
    cst.For: FlowReader._for,
    cst.While: FlowReader._while,
    cst.With: FlowReader._with,
    cst.Try: FlowReader._try,
    cst.TryStar: FlowReader._try,
    cst.Match: FlowReader._match,
    cst.FunctionDef: FlowReader._nested,
    cst.ClassDef: FlowReader._class,
}
_VALUES: dict[type, Callable[..., _Terms]] = {
    cst.Attribute: FlowReader._attribute,
    cst.Subscript: FlowReader._subscript,
    cst.Tuple: FlowReader._display,
    cst.List: FlowReader._display,
    cst.Set: FlowReader._display,
    cst.Dict: FlowReader._dict,
    cst.IfExp: FlowReader._conditional,
    cst.BooleanOperation: FlowReader._boolean,
    cst.BinaryOperation: FlowReader._binary,
    cst.UnaryOperation: FlowReader._unary,
    cst.Comparison: FlowReader._comparison,
    cst.NamedExpr: FlowReader._walrus,
    cst.Lambda: FlowReader._lambda,
    cst.ListComp: FlowReader._comprehension,
    cst.SetComp: FlowReader._comprehension,
    cst.GeneratorExp: FlowReader._comprehension,
    cst.DictComp: FlowReader._comprehension,
    cst.Await: FlowReader._await,
}
