"""Reads the kernels that a factory gives: their call arguments, the tensors' types, and the options that change the call.

Handled: nested ``@T.prim_func`` (several, in branches), eager kernels that type their parameters in the body, plain
functions given back (closures), delegation to another factory, kernels built by a function inside the factory, jit
factories inside plain functions. Whatever else a factory gives back is a kernel of style ``opaque`` with a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from porter.surface.digest import literal_string
from porter.surface.model import Kernel, KernelArgument, TensorSpec
from porter.surface.text import dotted, text_of
from porter.surface.tilelang_access import is_dtype
from porter.surface.tilelang_names import FACTORY_DECORATORS, KERNEL_DECORATORS, MACRO_DECORATORS, Dialect

LineOf = Callable[[cst.CSTNode], int]

_FORMS = {
    "T.Tensor": "tensor",
    "T.StridedTensor": "strided",
    "T.Buffer": "buffer",
    "T.SharedBuffer": "buffer",
    "T.FragmentBuffer": "buffer",
    "T.LocalBuffer": "buffer",
    "T.ptr": "pointer",
    "T.Ptr": "pointer",
    "T.handle": "pointer",
}
_FIELDS = {"strided": ("shape", "strides", "dtype"), "tensor": ("shape", "dtype"), "buffer": ("shape", "dtype"), "pointer": ("dtype",)}
_PLAIN_SCALARS = frozenset({"int", "float", "bool", "str", "complex"})


@dataclass
class _Body:
    """A function's own statements, nested functions' bodies left out, each with its branch."""

    function: cst.FunctionDef
    outer: _Body | None = None
    definitions: dict[str, list[tuple[cst.FunctionDef, tuple[str, ...]]]] = field(default_factory=dict)
    assigned: dict[str, list[tuple[cst.BaseExpression, tuple[str, ...]]]] = field(default_factory=dict)
    returned: list[tuple[cst.BaseExpression, tuple[str, ...]]] = field(default_factory=list)
    declared: list[tuple[str, cst.AnnAssign]] = field(default_factory=list)
    launches: bool = False

    @property
    def parameters(self) -> tuple[cst.Param, ...]:
        params = self.function.params
        star = (params.star_arg,) if isinstance(params.star_arg, cst.Param) else ()
        kwarg = (params.star_kwarg,) if params.star_kwarg is not None else ()
        return (*params.posonly_params, *params.params, *star, *params.kwonly_params, *kwarg)


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

    def __init__(self, function: cst.FunctionDef, dialect: Dialect, line_of: LineOf, path_of: Callable[[cst.CSTNode], str]) -> None:
        self._function = function
        self._dialect = dialect
        self._line_of = line_of
        self._path_of = path_of
        self._bodies: dict[cst.FunctionDef, _Body] = {}
        self._reading = Reading()
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
            if node is not None and (self._is(node, KERNEL_DECORATORS | FACTORY_DECORATORS) or self._builds(node) or kernels_called(node)):
                self._given(expression, conditions, self._root, jit=False)
                found = True
            elif isinstance(expression, cst.Call) and self._dialect.of(expression) in ("tilelang.compile", "T.prim_func", *FACTORY_DECORATORS):
                self._given(expression, conditions, self._root, jit=False)
                found = True
        self._unreturned()
        return reading, found

    def single(self) -> Reading:
        """A module-level prim_func: itself the kernel."""
        self._kernel(self._function, "prim_func", (), self._root)
        return self._reading

    # ------------------------------------------------------------------ statements

    def _body(self, function: cst.FunctionDef, outer: _Body | None) -> _Body:
        body = self._bodies.get(function)
        if body is None:
            body = self._bodies[function] = _Body(function, outer)
            self._scan(function.body, (), body)
        return body

    def _scan(self, suite: cst.BaseSuite, conditions: tuple[str, ...], body: _Body) -> bool:
        """Collect a suite's statements; True when it always leaves the function."""
        for statement in suite.body:
            if isinstance(statement, cst.SimpleStatementLine):
                for small in statement.body:
                    if self._small(small, conditions, body):
                        return True
            elif isinstance(statement, cst.BaseSmallStatement):
                if self._small(statement, conditions, body):
                    return True
            elif isinstance(statement, cst.FunctionDef):
                body.definitions.setdefault(statement.name.value, []).append((statement, conditions))
            elif isinstance(statement, cst.If):
                leaves, after = self._if(statement, conditions, body)
                if leaves:
                    return True
                conditions = after
            elif isinstance(statement, cst.With):
                body.launches |= any(self._dialect.of(item.item) in _LAUNCHES for item in statement.items)
                if self._scan(statement.body, conditions, body):
                    return True
            elif isinstance(statement, (cst.For, cst.While, cst.Try, cst.TryStar)):
                self._scan(statement.body, conditions, body)
                parts: list[cst.CSTNode | None] = [statement.orelse]
                if isinstance(statement, (cst.Try, cst.TryStar)):
                    parts += [*statement.handlers, statement.finalbody]
                for part in parts:
                    if isinstance(part, (cst.Else, cst.Finally, cst.ExceptHandler, cst.ExceptStarHandler)):
                        self._scan(part.body, conditions, body)
            elif isinstance(statement, cst.Match):
                subject = text_of(statement.subject)
                for case in statement.cases:
                    pattern = " ".join(cst.Module([]).code_for_node(case.pattern).split())
                    self._scan(case.body, (*conditions, f"{subject} matches {pattern}"), body)
        return False

    def _small(self, small: cst.BaseSmallStatement, conditions: tuple[str, ...], body: _Body) -> bool:
        if isinstance(small, cst.Assign):
            for target in small.targets:
                self._assigned(target.target, small.value, conditions, body)
        elif isinstance(small, cst.AnnAssign):
            if isinstance(small.target, cst.Name):
                if small.value is None:
                    body.declared.append((small.target.value, small))
                else:
                    body.assigned.setdefault(small.target.value, []).append((small.value, conditions))
        elif isinstance(small, cst.AugAssign):
            if isinstance(small.target, cst.Name):
                # Whatever it was, it is no longer what was assigned.
                body.assigned.setdefault(small.target.value, []).append((small.value, conditions))
        elif isinstance(small, cst.Return):
            if small.value is not None:
                body.returned.append((small.value, conditions))
            return True
        elif isinstance(small, (cst.Raise, cst.Continue, cst.Break)):
            return True
        return False

    def _assigned(self, target: cst.BaseExpression, value: cst.BaseExpression, conditions: tuple[str, ...], body: _Body) -> None:
        if isinstance(target, cst.Name):
            body.assigned.setdefault(target.value, []).append((value, conditions))
        elif isinstance(target, (cst.Tuple, cst.List)):
            values = value.elements if isinstance(value, (cst.Tuple, cst.List)) else ()
            paired = len(values) == len(target.elements)
            for index, element in enumerate(target.elements):
                part = values[index].value if paired else cst.Ellipsis()
                self._assigned(element.value, part, conditions, body)

    def _if(self, node: cst.If, conditions: tuple[str, ...], body: _Body) -> tuple[bool, tuple[str, ...]]:
        test = text_of(node.test)
        before = len(body.returned)
        leaves = self._scan(node.body, (*conditions, test), body)
        returns = len(body.returned) > before
        other = _negated(test)
        if isinstance(node.orelse, cst.If):
            leaves_other, after = self._if(node.orelse, (*conditions, other), body)
        elif node.orelse is not None:
            leaves_other, after = self._scan(node.orelse.body, (*conditions, other), body), (*conditions, other)
        else:
            leaves_other, after = False, (*conditions, other)
        if leaves and leaves_other:
            return True, conditions
        # Past ``if c: return kernel`` the kernel is given where c does not hold; a guard that raises says nothing.
        if leaves and returns:
            return False, after
        if leaves_other and len(body.returned) > before:
            return False, (*conditions, test)
        return False, conditions

    # ------------------------------------------------------------------ what is given back

    def _given(self, node: cst.BaseExpression, conditions: tuple[str, ...], body: _Body, *, jit: bool, depth: int = 0) -> None:
        """Read the kernels behind a returned expression."""
        if depth > 8:
            self._opaque(node, conditions)
        elif isinstance(node, cst.IfExp):
            test = text_of(node.test)
            self._given(node.body, (*conditions, test), body, jit=jit, depth=depth + 1)
            self._given(node.orelse, (*conditions, _negated(test)), body, jit=jit, depth=depth + 1)
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

    def _named(self, node: cst.Name, conditions: tuple[str, ...], body: _Body, *, jit: bool, depth: int) -> None:
        if node.value == "None":
            return
        place: _Body | None = body
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

    def _called(self, node: cst.Call, conditions: tuple[str, ...], body: _Body, *, jit: bool, depth: int) -> None:
        path = self._dialect.of(node)
        if path in ("tilelang.compile", "T.prim_func", *FACTORY_DECORATORS):
            self._options(node.args)
            inner = next((a.value for a in node.args if a.keyword is None or a.keyword.value in ("func", "program")), None)
            if inner is not None:
                self._given(inner, conditions, body, jit=jit, depth=depth + 1)
            return
        self._callee(node.func, node, conditions, body, jit=jit, depth=depth)

    def _callee(self, func: cst.BaseExpression, node: cst.Call, conditions: tuple[str, ...], body: _Body, *, jit: bool, depth: int) -> None:
        """Read the kernels that calling ``func`` gives back."""
        if depth > 8:
            return self._opaque(node, conditions)
        if isinstance(func, cst.IfExp):
            test = text_of(func.test)
            self._callee(func.body, node, (*conditions, test), body, jit=jit, depth=depth + 1)
            return self._callee(func.orelse, node, (*conditions, _negated(test)), body, jit=jit, depth=depth + 1)
        if isinstance(func, cst.Call):
            # ``tilelang.jit(f)(...)``, or a factory's result called again.
            return self._called(func, conditions, body, jit=jit, depth=depth + 1)
        name = dotted(func)
        if name is None or name in ("partial", "functools.partial"):
            return self._opaque(node, conditions)
        place: _Body | None = body
        while place is not None:
            for function, branch in place.definitions.get(name, ()):
                if self._is(function, KERNEL_DECORATORS | MACRO_DECORATORS):
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
        if name.partition(".")[0] in _names(body):
            return self._opaque(node, conditions)
        return self._delegated(name, conditions)

    def _kernel_or_builder(self, function: cst.FunctionDef, conditions: tuple[str, ...], body: _Body, *, jit: bool, depth: int) -> None:
        if self._is(function, KERNEL_DECORATORS):
            self._kernel(function, "prim_func", conditions, body)
        elif self._is(function, MACRO_DECORATORS):
            self._note(function, f"the macro {function.name.value} is given back")
            self._reading.add(Kernel(function.name.value, "opaque", condition=_conjunction(conditions)), None)
        elif self._is(function, FACTORY_DECORATORS) or self._builds(function):
            self._note(function, f"{function.name.value} is given back, which builds the kernel when it is called")
            for decorator in function.decorators:
                self._decorator(decorator.decorator)
            inner = self._body(function, body)
            if self._is(function, FACTORY_DECORATORS) and self._eager(inner, conditions):
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
            if node is not None and node is not function and (self._is(node, KERNEL_DECORATORS) or self._builds(node)):
                return True
        return False

    def _owner(self, function: cst.FunctionDef) -> _Body | None:
        for body in self._bodies.values():
            if any(function is node for rows in body.definitions.values() for node, _ in rows):
                return body
        return None

    def _function_behind(self, node: cst.BaseExpression, body: _Body) -> cst.FunctionDef | None:
        """The nested function that an expression names, or calls."""
        if isinstance(node, cst.Call):
            node = node.func
        if not isinstance(node, cst.Name):
            return None
        place: _Body | None = body
        while place is not None:
            if node.value in place.definitions:
                return place.definitions[node.value][-1][0]
            if node.value in place.assigned:
                value = place.assigned[node.value][-1][0]
                return self._function_behind(value, place) if isinstance(value, (cst.Name, cst.Call)) and value is not node else None
            place = place.outer
        return None

    def _is(self, function: cst.FunctionDef, paths: frozenset[str]) -> bool:
        return any(self._dialect.of(decorator.decorator) in paths for decorator in function.decorators)

    # ------------------------------------------------------------------ kernels

    def arguments(self, function: cst.FunctionDef, body: _Body | None) -> tuple[KernelArgument, ...]:
        """A kernel's own arguments, in order."""
        inner = self._body(function, body)
        bound = {}
        for values in inner.assigned.values():
            for value, _ in values:
                if isinstance(value, cst.Call) and self._dialect.of(value) == "T.match_buffer" and value.args:
                    name = dotted(value.args[0].value)
                    if name is not None:
                        bound[name] = value
        declared = {name: statement for name, statement in reversed(inner.declared)}
        rows = []
        for param in inner.parameters:
            name = param.name.value
            annotation = param.annotation
            if annotation is None and name in declared:
                # Typed in the body, as eager kernels do.
                annotation = declared[name].annotation
                self._reading.skip.append(declared[name])
            spec = self._spec(annotation.annotation, inner) if annotation is not None else TensorSpec("opaque")
            if spec.form == "pointer" and name in bound:
                spec = self._fields("buffer", bound[name], bound[name].args[1:], inner)
            default = None if param.default is None else text_of(param.default)
            rows.append(KernelArgument(param.star + name if isinstance(param.star, str) else name, spec, default=default))
        return tuple(rows)

    def _kernel(self, function: cst.FunctionDef, style: str, conditions: tuple[str, ...], body: _Body) -> None:
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
        self._reading.add(Kernel(delegate.rpartition(".")[2], "delegated", condition=condition, delegate=delegate), None)

    def _opaque(self, node: cst.BaseExpression, conditions: tuple[str, ...]) -> None:
        text = text_of(node)
        self._note(node, f"what is given back is not understood: {text}")
        condition = _conjunction(conditions)
        self._reading.add(Kernel("", "opaque", condition=condition), None)

    def _eager(self, body: _Body, conditions: tuple[str, ...]) -> bool:
        """An eager kernel: typed parameters in the body, or a launch in the factory's own statements."""
        reading = self._reading
        name = body.function.name
        names = {param.name.value for param in body.parameters}
        declared: dict[str, TensorSpec] = {}
        for parameter, statement in body.declared:
            if parameter not in names:
                continue
            spec = self._spec(statement.annotation.annotation, body)
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
                    spec = self._spec(param.annotation.annotation, body)
                    if spec.form in ("tensor", "strided", "buffer", "pointer"):
                        declared[param.name.value] = spec
        outputs = self._outputs(body)
        if not declared and not outputs:
            self._note(name, f"{name.value} launches a kernel without a typed tensor")
        arguments = tuple(
            KernelArgument(param.name.value, declared[param.name.value], default=None if param.default is None else text_of(param.default))
            for param in body.parameters
            if param.name.value in declared
        )
        if body is self._root:
            reading.eager = frozenset(declared)
        condition = _conjunction(conditions)
        reading.add(Kernel(name.value, "eager", arguments, condition, outputs=outputs, path=self._path_of(body.function)), body.function)
        return True

    def _outputs(self, body: _Body) -> tuple[KernelArgument, ...]:
        """Tensors made with T.empty, in the order in which they are returned."""
        made: dict[str, KernelArgument] = {}
        for name, values in body.assigned.items():
            for value, _ in values:
                if isinstance(value, cst.Call) and self._dialect.of(value) == "T.empty":
                    arguments = list(value.args)
                    if len([a for a in arguments if a.keyword is None]) > 2:
                        spec = TensorSpec("tensor", tuple(text_of(a.value) for a in arguments if a.keyword is None), text=text_of(value))
                    else:
                        spec = self._fields("tensor", value, arguments, body)
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
            if id(function) not in known and self._is(function, KERNEL_DECORATORS):
                self._kernel(function, "prim_func", (), body)
                self._note(function, f"the kernel {function.name.value} is built inside and not given back")
            elif id(function) not in known and self._is(function, FACTORY_DECORATORS):
                own = self._body(function, body)
                if not any(id(inner) in known for inner, _ in self._functions(own)):
                    self._note(function, f"the jit factory {function.name.value} is made inside and its kernel is not given back")
                    self._eager(own, ())

    def _functions(self, body: _Body) -> Iterator[tuple[cst.FunctionDef, _Body]]:
        for rows in body.definitions.values():
            for function, _ in rows:
                yield function, body
                if not self._is(function, KERNEL_DECORATORS | MACRO_DECORATORS):
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

    # ------------------------------------------------------------------ types

    def _spec(self, node: cst.BaseExpression, body: _Body, depth: int = 0) -> TensorSpec:
        """A kernel argument's type."""
        text = text_of(node)
        if isinstance(node, (cst.SimpleString, cst.ConcatenatedString)):
            return self._quoted(node, body, text, depth)
        if isinstance(node, cst.Call):
            form = _FORMS.get(self._dialect.of(node) or "")
            return TensorSpec("opaque", text=text) if form is None else self._fields(form, node, node.args, body)
        if isinstance(node, cst.Subscript):
            form = _FORMS.get(self._dialect.of(node.value) or "")
            if form is None:
                return TensorSpec("tensor", text=text) if _is_torch(text) else TensorSpec("opaque", text=text)
            parts = [element.slice.value for element in node.slice if isinstance(element.slice, cst.Index)]
            if len(parts) != len(node.slice):
                return TensorSpec("opaque", text=text)
            if not self._shape_first(parts, body):
                return TensorSpec(form, tuple(text_of(part) for part in parts), text=text)
            return self._fields(form, node, [cst.Arg(part) for part in parts], body)
        if isinstance(node, cst.IfExp):
            return _either(text_of(node.test), self._spec(node.body, body, depth), self._spec(node.orelse, body, depth), text)
        path = self._dialect.of(node)
        if path in _FORMS:
            return TensorSpec(_FORMS[path], text=text)
        if path is not None and path.startswith("T.") and is_dtype(path[2:]):
            return TensorSpec("scalar", dtype=text, text=text)
        if text in _PLAIN_SCALARS:
            return TensorSpec("scalar", dtype=text, text=text)
        if _is_torch(text):
            return TensorSpec("tensor", text=text)
        if isinstance(node, cst.Name) and depth < 4:
            values = self._values(node.value, body)
            specs = [self._spec(value, body, depth + 1) for value in values]
            if specs and all(spec == specs[0] for spec in specs) and specs[0].form != "opaque":
                return specs[0]
            if (not values and node.value in _names(body)) or "type" in node.value.lower():
                return TensorSpec("scalar", dtype=text, text=text)
        if isinstance(node, cst.Attribute) and "type" in node.attr.value.lower():
            return TensorSpec("scalar", dtype=text, text=text)
        return TensorSpec("opaque", text=text)

    def _quoted(self, node: cst.SimpleString | cst.ConcatenatedString, body: _Body, text: str, depth: int) -> TensorSpec:
        value = literal_string(node) if isinstance(node, cst.SimpleString) else ""
        if isinstance(value, str):
            if is_dtype(value):
                return TensorSpec("scalar", dtype=text, text=text)
            try:
                inner = cst.parse_expression(value)
            except (cst.ParserSyntaxError, ValueError):
                return TensorSpec("opaque", text=text)
            if depth < 4 and not isinstance(inner, (cst.SimpleString, cst.ConcatenatedString)):
                return self._spec(inner, body, depth + 1)
        return TensorSpec("opaque", text=text)

    def _fields(self, form: str, node: cst.BaseExpression, arguments: Sequence[cst.Arg], body: _Body) -> TensorSpec:
        """Shape, strides and dtype of ``T.Tensor(shape, dtype)`` and its kin."""
        given: dict[str, cst.BaseExpression] = {}
        text = text_of(node)
        if any(argument.star for argument in arguments):
            return TensorSpec("opaque", text=text)
        names = iter(_FIELDS[form])
        for argument in arguments:
            if argument.keyword is not None:
                given[argument.keyword.value] = argument.value
            else:
                name = next(names, None)
                if name is not None:
                    given[name] = argument.value
        shape = self._axes(given["shape"], body) if "shape" in given else None
        strides = self._axes(given["strides"], body) if "strides" in given else None
        dtype = text_of(given["dtype"]) if "dtype" in given else None
        return TensorSpec(form, shape, dtype, strides, text)

    def _axes(self, node: cst.BaseExpression, body: _Body) -> tuple[str, ...]:
        if isinstance(node, (cst.Tuple, cst.List)):
            return tuple(_element(element) for element in node.elements)
        if isinstance(node, cst.Name):
            values = self._values(node.value, body)
            if len(values) == 1 and isinstance(values[0], (cst.Tuple, cst.List)):
                self._reading.skip.append(values[0])
                return tuple(_element(element) for element in values[0].elements)
        return (text_of(node),)

    def _values(self, name: str, body: _Body) -> list[cst.BaseExpression]:
        place: _Body | None = body
        while place is not None:
            if name in place.assigned:
                return [value for value, _ in place.assigned[name]]
            if any(param.name.value == name for param in place.parameters):
                return []
            place = place.outer
        return []

    def _shape_first(self, parts: Sequence[cst.BaseExpression], body: _Body) -> bool:
        """``T.Tensor[shape, dtype]`` rather than ``T.Tensor[n, m]``: TileLang looks for a tuple or a string."""
        if any(isinstance(part, (cst.Tuple, cst.List, cst.SimpleString)) for part in parts):
            return True
        if len(parts) < 2:
            return False
        first = parts[0]
        if isinstance(first, cst.Name) and any(isinstance(v, (cst.Tuple, cst.List)) for v in self._values(first.value, body)):
            return True
        last = text_of(parts[-1])
        path = self._dialect.of(parts[-1])
        return (path is not None and path.startswith("T.") and (is_dtype(path[2:]) or path in _FORMS)) or "type" in last.lower() or "shape" in text_of(first)

    def _note(self, node: cst.CSTNode, text: str) -> None:
        note = f"line {self._line_of(node)}: {text}"
        if note not in self._reading.opaque:
            self._reading.opaque.append(note)


_LAUNCHES = frozenset({"T.Kernel", "T.ClusterKernel", "T.MixedKernel", "T.launch_thread"})


def _either(test: str, first: TensorSpec, second: TensorSpec, text: str) -> TensorSpec:
    """``a if test else b`` of two types that differ in their details alone."""
    if first.form != second.form or first.form == "opaque":
        return TensorSpec("opaque", text=text)

    def one(a: str | None, b: str | None) -> str | None:
        return a if a == b else f"{a} if {test} else {b}"

    def axes(a: tuple[str, ...] | None, b: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if a == b or a is None or b is None:
            return a if a == b else (f"{a} if {test} else {b}",)
        if len(a) != len(b):
            return (f"({', '.join(a)}) if {test} else ({', '.join(b)})",)
        return tuple(str(one(x, y)) for x, y in zip(a, b, strict=True))

    return TensorSpec(first.form, axes(first.shape, second.shape), one(first.dtype, second.dtype), axes(first.strides, second.strides), text)


def _negated(condition: str) -> str:
    return f"not ({condition})" if " " in condition else f"not {condition}"


def _conjunction(conditions: Sequence[str]) -> str:
    """Text of conditions that all hold, in order, each once; "" for none."""
    unique = list(dict.fromkeys(conditions))
    if len(unique) < 2:
        return "".join(unique)
    return " and ".join(f"({c})" if " or " in c or " if " in c or c.startswith("lambda") else c for c in unique)


def _element(element: cst.BaseElement) -> str:
    return ("*" if isinstance(element, cst.StarredElement) else "") + text_of(element.value)


def _both(*conditions: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(condition for part in conditions for condition in part))


def _names(body: _Body) -> set[str]:
    names: set[str] = set()
    place: _Body | None = body
    while place is not None:
        names.update(param.name.value for param in place.parameters)
        place = place.outer
    return names


def _is_torch(text: str) -> bool:
    return text.replace("Optional[", "").split("[")[0].split("|")[0].strip().rstrip("]").rpartition(".")[2] in ("Tensor", "Parameter")
