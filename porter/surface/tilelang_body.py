"""A factory's own statements, each with the conditions it stands under."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from porter.surface.text import text_of
from porter.surface.tilelang_names import Dialect

_LAUNCHES = frozenset({"T.Kernel", "T.ClusterKernel", "T.MixedKernel", "T.launch_thread"})


@dataclass
class Body:
    """A function's own statements, nested functions' bodies left out, each with the conditions it stands under.

    ``declared``: bare annotations (``x: T.Tensor[...]``). ``launches``: a kernel is launched in the function's own statements.
    """

    function: cst.FunctionDef
    dialect: Dialect
    outer: Body | None = None
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

    def names(self) -> set[str]:
        """Parameters of this function and of those around it."""
        own = {param.name.value for param in self.parameters}
        return own if self.outer is None else own | self.outer.names()


def read_body(function: cst.FunctionDef, outer: Body | None, dialect: Dialect) -> Body:
    """Collect a function's statements; nested functions are listed, not entered."""
    body = Body(function, dialect, outer)
    _scan(function.body, (), body)
    return body


def negated(condition: str) -> str:
    """Text of the opposite of a condition."""
    return f"not ({condition})" if " " in condition else f"not {condition}"


def _scan(suite: cst.BaseSuite, conditions: tuple[str, ...], body: Body) -> bool:
    """Collect a suite's statements; True when it always leaves the function."""
    for statement in suite.body:
        if isinstance(statement, cst.SimpleStatementLine):
            for small in statement.body:
                if _small(small, conditions, body):
                    return True
        elif isinstance(statement, cst.BaseSmallStatement):
            if _small(statement, conditions, body):
                return True
        elif isinstance(statement, cst.FunctionDef):
            body.definitions.setdefault(statement.name.value, []).append((statement, conditions))
        elif isinstance(statement, cst.If):
            leaves, after = _if(statement, conditions, body)
            if leaves:
                return True
            conditions = after
        elif isinstance(statement, cst.With):
            body.launches |= any(body.dialect.of(item.item) in _LAUNCHES for item in statement.items)
            if _scan(statement.body, conditions, body):
                return True
        elif isinstance(statement, (cst.For, cst.While, cst.Try, cst.TryStar)):
            _scan(statement.body, conditions, body)
            parts: list[cst.CSTNode | None] = [statement.orelse]
            if isinstance(statement, (cst.Try, cst.TryStar)):
                parts += [*statement.handlers, statement.finalbody]
            for part in parts:
                if isinstance(part, (cst.Else, cst.Finally, cst.ExceptHandler, cst.ExceptStarHandler)):
                    _scan(part.body, conditions, body)
        elif isinstance(statement, cst.Match):
            subject = text_of(statement.subject)
            for case in statement.cases:
                pattern = " ".join(cst.Module([]).code_for_node(case.pattern).split())
                _scan(case.body, (*conditions, f"{subject} matches {pattern}"), body)
    return False


def _small(small: cst.BaseSmallStatement, conditions: tuple[str, ...], body: Body) -> bool:
    if isinstance(small, cst.Assign):
        for target in small.targets:
            _assigned(target.target, small.value, conditions, body)
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


def _assigned(target: cst.BaseExpression, value: cst.BaseExpression, conditions: tuple[str, ...], body: Body) -> None:
    if isinstance(target, cst.Name):
        body.assigned.setdefault(target.value, []).append((value, conditions))
    elif isinstance(target, (cst.Tuple, cst.List)):
        values = value.elements if isinstance(value, (cst.Tuple, cst.List)) else ()
        paired = len(values) == len(target.elements)
        for index, element in enumerate(target.elements):
            part = values[index].value if paired else cst.Ellipsis()
            _assigned(element.value, part, conditions, body)


def _if(node: cst.If, conditions: tuple[str, ...], body: Body) -> tuple[bool, tuple[str, ...]]:
    test = text_of(node.test)
    before = len(body.returned)
    leaves = _scan(node.body, (*conditions, test), body)
    returns = len(body.returned) > before
    other = negated(test)
    if isinstance(node.orelse, cst.If):
        leaves_other, after = _if(node.orelse, (*conditions, other), body)
    elif node.orelse is not None:
        leaves_other, after = _scan(node.orelse.body, (*conditions, other), body), (*conditions, other)
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
