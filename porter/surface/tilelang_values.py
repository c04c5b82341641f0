"""What expressions of a TileLang function may stand for, and how names are followed to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import libcst as cst


class Derived:
    """What is got from values: a subscript (``i``), attribute (``a``), sum of containers (``+``), or them by value (``v``)."""

    __slots__ = ("element", "extra", "inner", "tag")

    def __init__(
        self, tag: str, inner: Sequence[Term], extra: int | str | None = None, *, element: bool = False
    ) -> None:
        self.tag = tag
        self.inner = tuple(inner)
        self.extra = extra
        self.element = element


# A term is what an expression may be, before names are looked up: ("n", scope, name) a name, ("p", scope, name) a parameter,
# ("f", scope) a function, ("c", scope, call, item) a call's result, ("t", container), ("x", path) a name from outside,
# ("o", operation), ("k", constant), ("m", values, name) a method of values.
type Term = Derived | tuple[Any, ...]
type Terms = list[Term]
type Found = tuple[Any, ...]
type Key = tuple[Term, bool]
# Branches on a plain name that an event stands under: (the name, whether it must hold).
type Guards = tuple[tuple[Term, bool], ...]


class Container:
    """A tuple, list, set or dict display: its items, and ``rest`` for what is added without a place."""

    __slots__ = ("items", "rest")

    def __init__(self, items: list[Terms], rest: Terms | None = None) -> None:
        self.items = items
        self.rest: Terms = rest or []

    def all(self) -> Terms:
        return [term for item in self.items for term in item] + self.rest


class Call:
    """A call that is not understood on its own: what is called, (keyword or star, what is given), the branches around it."""

    __slots__ = ("arguments", "callee", "guards", "node")

    def __init__(self, callee: Terms, arguments: list[tuple[str, Terms]], node: cst.CSTNode, guards: Guards) -> None:
        self.callee = callee
        self.arguments = arguments
        self.node = node
        self.guards = guards


class Scope:
    """One function: its variables and what happens in it.

    ``references``: parameters typed T.Ref, whose assignment is a write. ``tracked``: parameters that may be buffers (None: all).
    ``kept``, ``order``: set when the flow is written down, for what it needs.
    """

    __slots__ = (
        "calls",
        "children",
        "kept",
        "name",
        "node",
        "order",
        "outer_names",
        "parameters",
        "parent",
        "references",
        "returns",
        "tracked",
        "unknown",
        "variables",
        "writes",
    )

    def __init__(self, name: str, parent: Scope | None, node: cst.CSTNode) -> None:
        self.name = name
        self.parent = parent
        self.node = node
        self.variables: dict[str, Terms] = {}
        self.parameters: list[str] = []
        self.references: set[str] = set()
        self.outer_names: set[str] = set()
        self.tracked: frozenset[str] | None = None
        self.writes: list[tuple[Term, Guards]] = []
        self.unknown: list[tuple[Term, str, Guards]] = []
        self.calls: list[Call] = []
        self.returns: list[Terms] = []
        self.children: list[Scope] = []
        self.kept = False
        self.order: dict[int, int] = {}

    def place(self, name: str) -> Scope:
        """The scope that an assignment to ``name`` here binds in (``nonlocal`` followed)."""
        scope: Scope = self
        while name in scope.outer_names and scope.parent is not None:
            scope = scope.parent
        return scope

    def bind(self, name: str, terms: Iterable[Term]) -> None:
        """Let a name stand for more."""
        self.place(name).variables.setdefault(name, []).extend(terms)

    def all(self) -> Iterator[Scope]:
        """This scope and those inside."""
        yield self
        for child in self.children:
            yield from child.all()


class Solver:
    """Looks names up: from terms to what they come down to.

    Parameters:
        names: TileLang's names at module level; may grow while the function is read.
    """

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names
        # True once the function has been read to its end, so that answers can be kept.
        self.complete = False
        self._solved: dict[Key, dict[Found, None]] = {}

    def resolve(self, terms: Sequence[Term]) -> list[Found]:
        """What terms come down to: parameters, functions, call results, containers, outside names, operations."""
        out: dict[Found, None] = {}
        for term in terms:
            if not isinstance(term, Derived) and term[0] != "n":
                out[term] = None
            else:
                out.update(self._solve((term, False)))
        return list(out)

    def _solve(self, wanted: Key) -> dict[Found, None]:
        """Least fixpoint over all that ``wanted`` depends on; kept once the function has been read to its end."""
        memo = self._solved if self.complete else {}
        if wanted in memo:
            return memo[wanted]
        table: dict[Key, dict[Found, None]] = {wanted: {}}

        def get(term: Term, pointers: bool) -> Iterable[Found]:
            if not isinstance(term, Derived) and term[0] != "n":
                return (term,)
            key = (term, pointers)
            return memo[key] if key in memo else table.setdefault(key, {})

        size = -1
        while size != (size := len(table) + sum(map(len, table.values()))):
            for key in list(table):
                term, pointers = key
                found = table[key]
                if not isinstance(term, Derived):
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

    def _lookup(self, term: Found) -> Terms:
        """Everything that a name may stand for."""
        scope, name = term[1], term[2]
        owner: Scope | None = scope.place(name)
        while owner is not None and name not in owner.variables:
            owner = owner.parent
        if owner is not None:
            return owner.variables[name]
        path = self.names.get(name)
        if path is not None:
            return [("o", path[2:] if path.startswith("T.") else path)]
        return [("k", name) if name in CONSTANTS else ("x", name)]

    def flat(self, terms: Sequence[Term]) -> list[Found]:
        """``resolve`` with containers opened."""
        out: dict[Found, None] = {}
        opened: set[Container] = set()
        stack: Sequence[Term] = terms
        while stack:
            further: Terms = []
            for found in self.resolve(stack):
                if found[0] != "t":
                    out[found] = None
                elif found[1] not in opened:
                    opened.add(found[1])
                    further.extend(found[1].all())
            stack = further
        return list(out)


def _derive(term: Derived, found: Found) -> Terms:
    """One value under a subscript, an attribute, a sum of containers, or by value."""
    tag, kind, extra = term.tag, found[0], term.extra
    if tag == "v":
        return [found]
    if kind == "t":
        container: Container = found[1]
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
        return (
            [("c", found[1], found[2], extra)]
            if tag == "i" and found[3] is None and isinstance(extra, int)
            else [found]
        )
    if kind == "p":
        return [found]
    if tag == "a" and kind in ("x", "o"):
        # ``x = x.y`` in a loop has no end: a path this long goes no further.
        if found[1].count(".") >= _LONGEST_PATH:
            return [found]
        return [(kind, str(extra) if found[:2] == ("o", "T") else f"{found[1]}.{extra}")]
    return []


_LONGEST_PATH = 8
CONSTANTS = frozenset({"True", "False", "None"})
