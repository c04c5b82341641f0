"""Reads the ``Flow`` of a function: what it writes, calls and gives back, in terms of its own parameters.

One walk over the function's tree, nested functions included. Reading is insensitive to order and to branches (a name may be
all that is ever assigned to it), so that what is found is what *may* happen. Aliases are followed inside the function:
plain assignment, tuples and lists, ``a if c else b``, views and reshapes, subscripts, attributes, default arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import libcst as cst

from porter.surface.model import Flow, KernelArgument
from porter.surface.tilelang_calls import CallReader, LineOf, items, put
from porter.surface.tilelang_names import FACTORY_SUFFIX, KERNEL_DECORATORS, Dialect, canonical, decorated, imported
from porter.surface.tilelang_summary import summarise
from porter.surface.tilelang_values import CONSTANTS, Container, Derived, Scope, Term, Terms

# Attributes that describe a buffer and are not the buffer.
_DESCRIPTIVE = frozenset(
    {
        "shape",
        "dtype",
        "strides",
        "ndim",
        "name",
        "device",
        "size",
        "itemsize",
        "bits",
        "bytes",
        "is_cuda",
        "requires_grad",
    }
)


class FlowReader(CallReader):
    """Reads one top-level function.

    Parameters:
        function: the function or method.
        dialect: TileLang's names in its module.
        line_of: 1-based line of a node; asked only for what may have to be named.
    """

    def __init__(self, function: cst.FunctionDef, dialect: Dialect, line_of: LineOf) -> None:
        super().__init__(dialect, line_of)
        self._scopes: dict[cst.CSTNode, Scope] = {}
        self._root = self._function(function, None)
        self._solver.complete = True

    # ------------------------------------------------------------------ results

    def flow(
        self, kernels: Mapping[cst.CSTNode, Sequence[KernelArgument]], *, tracked: frozenset[str] | None = None
    ) -> Flow:
        """The function's flow.

        Parameters:
            kernels: the kernels inside that were read, each with its own arguments; their flows are kept.
            tracked: the function's parameters that may be buffers; None for all. A factory's constants are not.
        """
        self._root.tracked = tracked
        self.apply_named_operations(self._root)
        extra = [self._scopes[node] for node in kernels if node in self._scopes]
        return summarise(
            self._root, self._solver, kernels, extra=extra, is_kernel=self._is_kernel, line_of=self._line_of
        )

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

    def _gives_kernel(self, callee: Terms, makers: frozenset[str], depth: int) -> bool:
        for term in self._solver.resolve(callee):
            if term[0] == "x" and (term[1] in makers or str(term[1]).endswith(FACTORY_SUFFIX)):
                return True
            if term[0] == "f" and isinstance(term[1].node, cst.FunctionDef) and self._is_kernel(term[1].node):
                return True
            if term[0] == "c" and depth and self._gives_kernel(term[1].calls[term[2]].callee, makers, depth - 1):
                return True
        return False

    def _is_kernel(self, function: cst.FunctionDef) -> bool:
        return decorated(function, Dialect(self._solver.names), KERNEL_DECORATORS)

    # ------------------------------------------------------------------ statements

    def _function(self, node: cst.FunctionDef, parent: Scope | None) -> Scope:
        scope = self._open(node.name.value, parent, node, node.params)
        guards, self._guards = self._guards, ()
        self._block(node.body, scope)
        self._guards = guards
        return scope

    def _open(self, name: str, parent: Scope | None, node: cst.CSTNode, params: cst.Parameters) -> Scope:
        if parent is not None:
            taken = {child.name for child in parent.children}
            serial, base = 2, name
            while name in taken:
                name = f"{base}~{serial}"
                serial += 1
        scope = Scope(name, parent, node)
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

    def _parameter(self, param: cst.Param, scope: Scope, star: str) -> None:
        name = param.name.value
        default = param.default.value if isinstance(param.default, cst.Name) else ""
        scope.parameters.append(f"{star}{name}={default}" if default in CONSTANTS else star + name)
        terms = scope.variables.setdefault(name, [])
        terms.append(("p", scope, name))
        if param.default is not None and scope.parent is not None and default not in CONSTANTS:
            terms.extend(self.value(param.default, scope.parent))
        if param.annotation is not None:
            written = param.annotation.annotation
            base = written.value if isinstance(written, cst.Subscript) else written
            if self.static(base, scope) in ("T.Ref", "T.Var"):
                scope.references.add(name)

    def _block(self, body: cst.BaseSuite | cst.Else | cst.Finally, scope: Scope) -> None:
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

    def _if(self, node: cst.If, scope: Scope) -> None:
        self.value(node.test, scope)
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

    def _for(self, node: cst.For, scope: Scope) -> None:
        self._bind(node.target, items(self.value(node.iter, scope)), scope)
        self._block(node.body, scope)
        if node.orelse is not None:
            self._block(node.orelse, scope)

    def _while(self, node: cst.While, scope: Scope) -> None:
        self.value(node.test, scope)
        self._block(node.body, scope)
        if node.orelse is not None:
            self._block(node.orelse, scope)

    def _with(self, node: cst.With, scope: Scope) -> None:
        for item in node.items:
            terms = self.value(item.item, scope)
            if item.asname is not None:
                self._bind(item.asname.name, terms, scope)
        self._block(node.body, scope)

    def _try(self, node: cst.Try | cst.TryStar, scope: Scope) -> None:
        self._block(node.body, scope)
        for handler in node.handlers:
            self._block(handler.body, scope)
        for part in (node.orelse, node.finalbody):
            if part is not None:
                self._block(part, scope)

    def _match(self, node: cst.Match, scope: Scope) -> None:
        subject = self.value(node.subject, scope)
        for case in node.cases:
            for name in _captured(case.pattern):
                self._bind(cst.Name(name), subject, scope)
            if case.guard is not None:
                self.value(case.guard, scope)
            self._block(case.body, scope)

    def _nested(self, node: cst.FunctionDef, scope: Scope) -> None:
        child = self._function(node, scope)
        scope.bind(node.name.value, [("f", child)])

    def _class(self, node: cst.ClassDef, scope: Scope) -> None:
        # Its methods are not followed: whoever hands a buffer to an instance is told so.
        scope.variables.setdefault(node.name.value, []).append(("x", node.name.value))

    def _assign(self, node: cst.Assign, scope: Scope) -> None:
        terms = self.value(node.value, scope)
        for target in node.targets:
            self._bind(target.target, terms, scope, stores=True)

    def _annotated(self, node: cst.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self._bind(node.target, self.value(node.value, scope), scope, stores=True)

    def _augmented(self, node: cst.AugAssign, scope: Scope) -> None:
        terms = self.value(node.value, scope)
        if isinstance(node.target, cst.Name):
            name = node.target.value
            if name in scope.references:
                self.write([("p", scope, name)], scope)
            elif isinstance(node.operator, cst.AddAssign):
                scope.bind(name, [Derived("+", terms)])
        else:
            self._bind(node.target, [], scope, stores=True)

    def _expression(self, node: cst.Expr, scope: Scope) -> None:
        self.value(node.value, scope)

    def _return(self, node: cst.Return, scope: Scope) -> None:
        if node.value is not None:
            scope.returns.append(self.value(node.value, scope))

    def _assert(self, node: cst.Assert, scope: Scope) -> None:
        self.value(node.test, scope)

    def _nonlocal(self, node: cst.Nonlocal | cst.Global, scope: Scope) -> None:
        scope.outer_names.update(item.name.value for item in node.names)

    def _import(self, node: cst.Import | cst.ImportFrom, scope: Scope) -> None:
        for local, path in imported(node):
            if path.split(".")[0] == "tilelang":
                self._solver.names[local] = canonical(path)
            else:
                scope.variables.setdefault(local, []).append(("x", path))

    # ------------------------------------------------------------------ binding

    def _bind(self, target: cst.CSTNode, terms: Terms, scope: Scope, *, stores: bool = False) -> None:
        if isinstance(target, cst.Name):
            name = target.value
            if stores and name in scope.references:
                self.write([("p", scope, name)], scope)
            else:
                scope.bind(name, terms)
        elif isinstance(target, (cst.Tuple, cst.List)):
            elements = target.elements
            starred = next((i for i, e in enumerate(elements) if isinstance(e, cst.StarredElement)), None)
            for index, element in enumerate(elements):
                known = index if starred is None or index < starred else None
                self._bind(element.value, [Derived("i", terms, known)] if terms else [], scope, stores=stores)
        elif isinstance(target, cst.Subscript):
            base = self.value(target.value, scope)
            for part in target.slice:
                self._slice(part.slice, scope)
            if stores:
                self.write(base, scope)
                put(base, terms, scope)
        elif isinstance(target, cst.Attribute):
            self.value(target.value, scope)
            if stores and isinstance(target.value, cst.Name):
                scope.bind(target.value.value, terms)
        elif isinstance(target, cst.StarredElement):
            self._bind(target.value, terms, scope, stores=stores)

    # ------------------------------------------------------------------ expressions

    def value(self, node: cst.BaseExpression, scope: Scope) -> Terms:
        kind = type(node)
        if kind is cst.Name:
            return [("n", scope, node.value)]  # type: ignore[attr-defined]
        if kind is cst.Call:
            return self.call(node, scope)  # type: ignore[arg-type]
        handler = _VALUES.get(kind)
        return [] if handler is None else handler(self, node, scope)

    def _attribute(self, node: cst.Attribute, scope: Scope) -> Terms:
        attribute = node.attr.value
        if attribute in _DESCRIPTIVE:
            self.value(node.value, scope)
            return []
        terms = self.value(node.value, scope)
        return [Derived("a", terms, attribute)] if terms else []

    def _subscript(self, node: cst.Subscript, scope: Scope) -> Terms:
        terms = self.value(node.value, scope)
        for part in node.slice:
            self._slice(part.slice, scope)
        if not terms:
            return []
        element = not any(isinstance(part.slice, cst.Slice) for part in node.slice)
        return [Derived("i", terms, _constant_index(node), element=element)]

    def _slice(self, node: cst.BaseSlice, scope: Scope) -> None:
        if isinstance(node, cst.Index):
            self.value(node.value, scope)
        elif isinstance(node, cst.Slice):
            for part in (node.lower, node.upper, node.step):
                if part is not None:
                    self.value(part, scope)

    def _display(self, node: cst.Tuple | cst.List | cst.Set, scope: Scope) -> Terms:
        placed: list[Terms] = []
        rest: Terms = []
        for element in node.elements:
            terms = self.value(element.value, scope)
            if isinstance(element, cst.StarredElement) or rest:
                rest.extend(items(terms) if isinstance(element, cst.StarredElement) else terms)
            else:
                placed.append(terms)
        return [("t", Container(placed, rest))]

    def _dict(self, node: cst.Dict, scope: Scope) -> Terms:
        rest: Terms = []
        for element in node.elements:
            if isinstance(element, cst.DictElement):
                rest.extend(self.value(element.key, scope))
            rest.extend(self.value(element.value, scope))
        return [("t", Container([], rest))]

    def _conditional(self, node: cst.IfExp, scope: Scope) -> Terms:
        self.value(node.test, scope)
        return self.value(node.body, scope) + self.value(node.orelse, scope)

    def _boolean(self, node: cst.BooleanOperation, scope: Scope) -> Terms:
        return self.value(node.left, scope) + self.value(node.right, scope)

    def _binary(self, node: cst.BinaryOperation, scope: Scope) -> Terms:
        left, right = self.value(node.left, scope), self.value(node.right, scope)
        # ``args + (x,)`` joins containers; every other arithmetic makes a number.
        return [Derived("+", left + right)] if isinstance(node.operator, cst.Add) and (left or right) else []

    def _unary(self, node: cst.UnaryOperation, scope: Scope) -> Terms:
        self.value(node.expression, scope)
        return []

    def _comparison(self, node: cst.Comparison, scope: Scope) -> Terms:
        self.value(node.left, scope)
        for target in node.comparisons:
            self.value(target.comparator, scope)
        return []

    def _walrus(self, node: cst.NamedExpr, scope: Scope) -> Terms:
        terms = self.value(node.value, scope)
        self._bind(node.target, terms, scope)
        return terms

    def _lambda(self, node: cst.Lambda, scope: Scope) -> Terms:
        child = self._open("<lambda>", scope, node, node.params)
        child.returns.append(self.value(node.body, child))
        return [("f", child)]

    def _comprehension(self, node: cst.ListComp | cst.SetComp | cst.GeneratorExp | cst.DictComp, scope: Scope) -> Terms:
        loop: cst.CompFor | None = node.for_in
        while loop is not None:
            self._bind(loop.target, items(self.value(loop.iter, scope)), scope)
            for condition in loop.ifs:
                self.value(condition.test, scope)
            loop = loop.inner_for_in
        if isinstance(node, cst.DictComp):
            return [("t", Container([], self.value(node.key, scope) + self.value(node.value, scope)))]
        return [("t", Container([], self.value(node.elt, scope)))]

    def _await(self, node: cst.Await, scope: Scope) -> Terms:
        return self.value(node.expression, scope)


def _guard(test: cst.BaseExpression, scope: Scope) -> tuple[Term, bool] | None:
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
_VALUES: dict[type, Callable[..., Terms]] = {
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
