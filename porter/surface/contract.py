"""Reads the kernels that a factory gives: their call arguments, the tensors' types, and the options that change the call.

Handled: nested ``@T.prim_func`` (several, in branches), eager kernels that type their parameters in the body, plain
functions given back (closures), delegation to another factory, kernels built by a function inside the factory, jit
factories inside plain functions. Whatever else a factory gives back is a kernel of style ``opaque`` with a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from porter.surface.model import Kernel, KernelArgument, TensorSpec
from porter.surface.text import dotted, text_of
from porter.surface.tilelang_body import Body, negated, read_body
from porter.surface.tilelang_names import FACTORY_DECORATORS, KERNEL_DECORATORS, MACRO_DECORATORS, Dialect, decorated
from porter.surface.tilelang_types import TypeReader

LineOf = Callable[[cst.CSTNode], int]

# Calls that make a kernel of the function they are given.
_COMPILED = FACTORY_DECORATORS | {"tilelang.compile", "T.prim_func"}


@dataclass
class Reading:
    """What was read of one function.

    ``kernels``: in the order met. ``nodes``: the function behind each kernel (None where there is none here).
    ``skip``: nodes that the contract holds, to be left out of the body digest. ``built``: kernels that are defined but
    not given back. ``eager``: parameters that an eager kernel types as tensors.
    """

    kernels: list[Kernel] = field(default_factory=list)
    nodes: list[cst.FunctionDef | None] = field(default_factory=list)
    opaque: list[str] = field(default_factory=list)
    skip: list[cst.CSTNode] = field(default_factory=list)
    out_idx: str | None = None
    eager: frozenset[str] = frozenset()

    def add(self, kernel: Kernel, node: cst.FunctionDef | None) -> None:
        if kernel not in self.kernels:
            self.kernels.append(kernel)
            self.nodes.append(node)


class ContractReader:
    """Reads one top-level function's contract.

    Parameters:
        function: the function.
        dialect: TileLang's names in its module.
        line_of: 1-based line of a node; asked only for notes.
        path_of: path of a nested function inside ``function`` (see ``Kernel.path``).
    """

    def __init__(
        self, function: cst.FunctionDef, dialect: Dialect, line_of: LineOf, path_of: Callable[[cst.CSTNode], str]
    ) -> None:
        self._function = function
        self._dialect = dialect
        self._line_of = line_of
        self._path_of = path_of
        self._bodies: dict[cst.FunctionDef, Body] = {}
        self._reading = Reading()
        self._types = TypeReader(dialect, self._reading.skip)
        self._root = self._body(function, None)

    # ------------------------------------------------------------------ entry points

    def factory(self, *, jit: bool) -> Reading:
        """A function known to be a factory: whatever it gives back is a kernel or is noted."""
        reading = self._reading
        for decorator in self._function.decorators:
            self._decorator(decorator.decorator)
        if jit and self._eager(self._root, ()):
            self._unreturned()
            return reading
        for expression, conditions in self._root.returned:
            self._given(expression, conditions, self._root, jit=jit)
        if not reading.kernels:
            self._note(self._function.name, f"{self._function.name.value} gives back no kernel that can be seen")
            reading.add(Kernel(self._function.name.value, "opaque"), None)
        self._unreturned()
        return reading

    def plain(self, kernels_called: Callable[[cst.FunctionDef], bool]) -> tuple[Reading, bool]:
        """A function that may be a factory: it is one when it gives back a prim_func or a closure over a kernel."""
        reading = self._reading
        found = False
        for expression, conditions in self._root.returned:
            node = self._function_behind(expression, self._root)
            inside = node is not None and (
                decorated(node, self._dialect, KERNEL_DECORATORS | FACTORY_DECORATORS)
                or self._builds(node)
                or kernels_called(node)
            )
            if inside or self._compiled(expression):
                self._given(expression, conditions, self._root, jit=False)
                found = True
        self._unreturned()
        return reading, found

    def _compiled(self, node: cst.BaseExpression) -> bool:
        """Is that tilelang.compile's result, or a prim_func or jit object made by a call?"""
        if isinstance(node, cst.Name):
            values = self._root.assigned.get(node.value, ())
            return any(isinstance(value, cst.Call) and self._compiled(value) for value, _ in values)
        if not isinstance(node, cst.Call) or self._dialect.of(node) not in _COMPILED:
            return False
        # Compiling what a caller hands over makes no factory.
        given = node.args[0].value if node.args else None
        return not (isinstance(given, cst.Name) and any(p.name.value == given.value for p in self._root.parameters))

    def single(self) -> Reading:
        """A module-level prim_func: itself the kernel."""
        self._kernel(self._function, "prim_func", (), self._root)
        return self._reading

    def _body(self, function: cst.FunctionDef, outer: Body | None) -> Body:
        body = self._bodies.get(function)
        if body is None:
            body = self._bodies[function] = read_body(function, outer, self._dialect)
        return body

    # ------------------------------------------------------------------ what is given back

    def _given(
        self, node: cst.BaseExpression, conditions: tuple[str, ...], body: Body, *, jit: bool, depth: int = 0
    ) -> None:
        """Read the kernels behind a returned expression."""
        if depth > 8:
            self._opaque(node, conditions)
        elif isinstance(node, cst.IfExp):
            test = text_of(node.test)
            self._given(node.body, (*conditions, test), body, jit=jit, depth=depth + 1)
            self._given(node.orelse, (*conditions, negated(test)), body, jit=jit, depth=depth + 1)
        elif isinstance(node, (cst.Tuple, cst.List)):
            for element in node.elements:
                self._given(element.value, conditions, body, jit=jit, depth=depth + 1)
        elif isinstance(node, cst.Name):
            self._named(node, conditions, body, jit=jit, depth=depth)
        elif isinstance(node, cst.Lambda):
            self._closure(node.params, "<lambda>", conditions, node)
        elif isinstance(node, cst.Call):
            self._called(node, conditions, body, jit=jit, depth=depth)
        else:
            self._opaque(node, conditions)

    def _named(self, node: cst.Name, conditions: tuple[str, ...], body: Body, *, jit: bool, depth: int) -> None:
        if node.value == "None":
            return
        place: Body | None = body
        while place is not None:
            definitions = place.definitions.get(node.value, ())
            for function, branch in definitions:
                self._kernel_or_builder(function, _both(conditions, branch), place, jit=jit, depth=depth)
            values = place.assigned.get(node.value, ()) if not definitions else ()
            for value, branch in values:
                self._given(value, _both(conditions, branch), place, jit=jit, depth=depth + 1)
            if definitions or values:
                return
            place = place.outer
        if any(param.name.value == node.value for param in body.parameters):
            self._opaque(node, conditions)
        else:
            self._delegated(node.value, conditions)

    def _called(self, node: cst.Call, conditions: tuple[str, ...], body: Body, *, jit: bool, depth: int) -> None:
        path = self._dialect.of(node)
        if path in _COMPILED:
            self._options(node.args)
            inner = next(
                (a.value for a in node.args if a.keyword is None or a.keyword.value in ("func", "program")), None
            )
            if inner is not None:
                self._given(inner, conditions, body, jit=jit, depth=depth + 1)
            return
        self._callee(node.func, node, conditions, body, jit=jit, depth=depth)

    def _callee(
        self,
        func: cst.BaseExpression,
        node: cst.Call,
        conditions: tuple[str, ...],
        body: Body,
        *,
        jit: bool,
        depth: int,
    ) -> None:
        """Read the kernels that calling ``func`` gives back."""
        if depth > 8:
            return self._opaque(node, conditions)
        if isinstance(func, cst.IfExp):
            test = text_of(func.test)
            self._callee(func.body, node, (*conditions, test), body, jit=jit, depth=depth + 1)
            return self._callee(func.orelse, node, (*conditions, negated(test)), body, jit=jit, depth=depth + 1)
        if isinstance(func, cst.Call):
            # ``tilelang.jit(f)(...)``, or a factory's result called again.
            return self._called(func, conditions, body, jit=jit, depth=depth + 1)
        name = dotted(func)
        if name is None or name in ("partial", "functools.partial"):
            return self._opaque(node, conditions)
        place: Body | None = body
        while place is not None:
            for function, branch in place.definitions.get(name, ()):
                if decorated(function, self._dialect, KERNEL_DECORATORS | MACRO_DECORATORS):
                    self._opaque(node, conditions)
                    continue
                for decorator in function.decorators:
                    self._decorator(decorator.decorator)
                inner = self._body(function, place)
                for value, inner_branch in inner.returned:
                    self._given(value, _both(conditions, branch, inner_branch), inner, jit=jit, depth=depth + 1)
            if name not in place.definitions:
                for value, branch in place.assigned.get(name, ()):
                    self._callee(value, node, _both(conditions, branch), place, jit=jit, depth=depth + 1)
            if name in place.definitions or name in place.assigned:
                return None
            place = place.outer
        if name.partition(".")[0] in body.names():
            return self._opaque(node, conditions)
        return self._delegated(name, conditions)

    def _kernel_or_builder(
        self, function: cst.FunctionDef, conditions: tuple[str, ...], body: Body, *, jit: bool, depth: int
    ) -> None:
        if decorated(function, self._dialect, KERNEL_DECORATORS):
            self._kernel(function, "prim_func", conditions, body)
        elif decorated(function, self._dialect, MACRO_DECORATORS):
            self._note(function, f"the macro {function.name.value} is given back")
            self._reading.add(Kernel(function.name.value, "opaque", condition=_conjunction(conditions)), None)
        elif decorated(function, self._dialect, FACTORY_DECORATORS) or self._builds(function):
            self._note(function, f"{function.name.value} is given back, which builds the kernel when it is called")
            for decorator in function.decorators:
                self._decorator(decorator.decorator)
            inner = self._body(function, body)
            if decorated(function, self._dialect, FACTORY_DECORATORS) and self._eager(inner, conditions):
                return
            for value, branch in inner.returned:
                self._given(value, _both(conditions, branch), inner, jit=jit, depth=depth + 1)
        else:
            self._kernel(function, "closure", conditions, body)

    def _builds(self, function: cst.FunctionDef) -> bool:
        """Does a nested plain function give back a prim_func?"""
        body = self._body(function, self._owner(function))
        for value, _ in body.returned:
            node = self._function_behind(value, body)
            if (
                node is not None
                and node is not function
                and (decorated(node, self._dialect, KERNEL_DECORATORS) or self._builds(node))
            ):
                return True
        return False

    def _owner(self, function: cst.FunctionDef) -> Body | None:
        for body in self._bodies.values():
            if any(function is node for rows in body.definitions.values() for node, _ in rows):
                return body
        return None

    def _function_behind(self, node: cst.BaseExpression, body: Body) -> cst.FunctionDef | None:
        """The nested function that an expression names, or calls."""
        if isinstance(node, cst.Call):
            node = node.func
        if not isinstance(node, cst.Name):
            return None
        place: Body | None = body
        while place is not None:
            if node.value in place.definitions:
                return place.definitions[node.value][-1][0]
            if node.value in place.assigned:
                value = place.assigned[node.value][-1][0]
                return (
                    self._function_behind(value, place)
                    if isinstance(value, (cst.Name, cst.Call)) and value is not node
                    else None
                )
            place = place.outer
        return None

    # ------------------------------------------------------------------ kernels

    def arguments(self, function: cst.FunctionDef, body: Body | None) -> tuple[KernelArgument, ...]:
        """A kernel's own arguments, in order."""
        inner = self._body(function, body)
        bound = {}
        for values in inner.assigned.values():
            for value, _ in values:
                if isinstance(value, cst.Call) and self._dialect.of(value) == "T.match_buffer" and value.args:
                    name = dotted(value.args[0].value)
                    if name is not None:
                        bound[name] = value
        declared = dict(reversed(inner.declared))
        rows = []
        for param in inner.parameters:
            name = param.name.value
            annotation = param.annotation
            if annotation is None and name in declared:
                # Typed in the body, as eager kernels do.
                annotation = declared[name].annotation
                self._reading.skip.append(declared[name])
            spec = self._types.spec(annotation.annotation, inner) if annotation is not None else TensorSpec("opaque")
            if spec.form == "pointer" and name in bound:
                spec = self._types.fields("buffer", bound[name], bound[name].args[1:], inner)
            default = None if param.default is None else text_of(param.default)
            rows.append(
                KernelArgument(param.star + name if isinstance(param.star, str) else name, spec, default=default)
            )
        return tuple(rows)

    def _kernel(self, function: cst.FunctionDef, style: str, conditions: tuple[str, ...], body: Body) -> None:
        arguments = self.arguments(function, body if function is not self._function else None)
        for argument in arguments:
            if argument.spec.form == "opaque" and style == "prim_func":
                written = argument.spec.text or "no annotation"
                self._note(function, f"{function.name.value}: the type of {argument.name} is not understood: {written}")
        if function is not self._function:
            self._reading.skip.append(function.params)
        condition = _conjunction(conditions)
        path = self._path_of(function)
        self._reading.add(Kernel(function.name.value, style, arguments, condition, path=path), function)

    def _closure(self, params: cst.Parameters, name: str, conditions: tuple[str, ...], node: cst.Lambda) -> None:
        arguments = tuple(KernelArgument(param.name.value, TensorSpec("opaque")) for param in params.params)
        condition = _conjunction(conditions)
        self._reading.add(Kernel(name, "closure", arguments, condition, path=self._path_of(node)), None)

    def _delegated(self, delegate: str, conditions: tuple[str, ...]) -> None:
        condition = _conjunction(conditions)
        self._reading.add(
            Kernel(delegate.rpartition(".")[2], "delegated", condition=condition, delegate=delegate), None
        )

    def _opaque(self, node: cst.BaseExpression, conditions: tuple[str, ...]) -> None:
        text = text_of(node)
        self._note(node, f"what is given back is not understood: {text}")
        condition = _conjunction(conditions)
        self._reading.add(Kernel("", "opaque", condition=condition), None)

    def _eager(self, body: Body, conditions: tuple[str, ...]) -> bool:
        """An eager kernel: typed parameters in the body, or a launch in the factory's own statements."""
        reading = self._reading
        name = body.function.name
        names = {param.name.value for param in body.parameters}
        declared: dict[str, TensorSpec] = {}
        for parameter, statement in body.declared:
            if parameter not in names:
                continue
            spec = self._types.spec(statement.annotation.annotation, body)
            if spec.form == "opaque":
                self._note(statement, f"the type of {parameter} is not understood: {spec.text}")
            if parameter in declared and declared[parameter] != spec:
                self._note(statement, f"{parameter} has several types; the first is kept")
            declared.setdefault(parameter, spec)
            reading.skip.append(statement)
        if not declared and not body.launches:
            return False
        if body.launches:
            for param in body.parameters:
                if param.name.value not in declared and param.annotation is not None:
                    spec = self._types.spec(param.annotation.annotation, body)
                    if spec.form in ("tensor", "strided", "buffer", "pointer"):
                        declared[param.name.value] = spec
        outputs = self._outputs(body)
        if not declared and not outputs:
            self._note(name, f"{name.value} launches a kernel without a typed tensor")
        arguments = tuple(
            KernelArgument(
                param.name.value,
                declared[param.name.value],
                default=None if param.default is None else text_of(param.default),
            )
            for param in body.parameters
            if param.name.value in declared
        )
        if body is self._root:
            reading.eager = frozenset(declared)
        condition = _conjunction(conditions)
        reading.add(
            Kernel(name.value, "eager", arguments, condition, outputs=outputs, path=self._path_of(body.function)),
            body.function,
        )
        return True

    def _outputs(self, body: Body) -> tuple[KernelArgument, ...]:
        """Tensors made with T.empty, in the order in which they are returned."""
        made: dict[str, KernelArgument] = {}
        for name, values in body.assigned.items():
            for value, _ in values:
                if isinstance(value, cst.Call) and self._dialect.of(value) == "T.empty":
                    arguments = list(value.args)
                    if len([a for a in arguments if a.keyword is None]) > 2:
                        spec = TensorSpec(
                            "tensor",
                            tuple(text_of(a.value) for a in arguments if a.keyword is None),
                            text=text_of(value),
                        )
                    else:
                        spec = self._types.fields("tensor", value, arguments, body)
                    made[name] = KernelArgument(name, spec, written=True)
                    self._reading.skip.append(value)
        order: list[str] = []
        for expression, _ in body.returned:
            elements = [e.value for e in expression.elements] if isinstance(expression, cst.Tuple) else [expression]
            order += [e.value for e in elements if isinstance(e, cst.Name) and e.value in made]
        return tuple(made[name] for name in dict.fromkeys([*order, *made]))

    def _unreturned(self) -> None:
        """Name kernels that are built here and not given back."""
        known = {id(node) for node in self._reading.nodes}
        for function, body in self._functions(self._root):
            if id(function) not in known and decorated(function, self._dialect, KERNEL_DECORATORS):
                self._kernel(function, "prim_func", (), body)
                self._note(function, f"the kernel {function.name.value} is built inside and not given back")
            elif id(function) not in known and decorated(function, self._dialect, FACTORY_DECORATORS):
                own = self._body(function, body)
                if not any(id(inner) in known for inner, _ in self._functions(own)):
                    self._note(
                        function,
                        f"the jit factory {function.name.value} is made inside and its kernel is not given back",
                    )
                    self._eager(own, ())

    def _functions(self, body: Body) -> Iterator[tuple[cst.FunctionDef, Body]]:
        for rows in body.definitions.values():
            for function, _ in rows:
                yield function, body
                if not decorated(function, self._dialect, KERNEL_DECORATORS | MACRO_DECORATORS):
                    yield from self._functions(self._body(function, body))

    # ------------------------------------------------------------------ decorators

    def _decorator(self, node: cst.BaseExpression) -> None:
        if isinstance(node, cst.Call) and self._dialect.of(node) in FACTORY_DECORATORS:
            self._options(node.args)

    def _options(self, arguments: Sequence[cst.Arg]) -> None:
        for argument in arguments:
            if argument.star == "**":
                self._note(argument, f"options **{text_of(argument.value)} may hold out_idx")
            elif argument.keyword is not None and argument.keyword.value == "out_idx":
                self._reading.out_idx = text_of(argument.value)
                self._reading.skip.append(argument)

    def _note(self, node: cst.CSTNode, text: str) -> None:
        note = f"line {self._line_of(node)}: {text}"
        if note not in self._reading.opaque:
            self._reading.opaque.append(note)


def _conjunction(conditions: Sequence[str]) -> str:
    """Text of conditions that all hold, in order, each once; "" for none."""
    unique = list(dict.fromkeys(conditions))
    if len(unique) < 2:
        return "".join(unique)
    return " and ".join(f"({c})" if " or " in c or " if " in c or c.startswith("lambda") else c for c in unique)


def _both(*conditions: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(condition for part in conditions for condition in part))
