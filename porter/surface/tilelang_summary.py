"""Writes a function's ``Flow`` down from what was read: what is needed of it, in the text form of ``model.Flow``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import libcst as cst

from porter.surface.model import Flow, KernelArgument
from porter.surface.tilelang_values import Call, Container, Found, Guards, Scope, Solver, Term, Terms


def summarise(
    root: Scope,
    solver: Solver,
    kernels: Mapping[cst.CSTNode, Sequence[KernelArgument]],
    *,
    extra: Sequence[Scope],
    is_kernel: Callable[[cst.FunctionDef], bool],
    line_of: Callable[[cst.CSTNode], int],
) -> Flow:
    """The flow of ``root``; ``extra`` are scopes inside it that are kept whatever happens."""
    summary = _Summary(solver, is_kernel, line_of)
    summary.keep([root, *extra])
    for scope in root.all():
        scope.order = {index: place for place, index in enumerate(sorted(scope.order))}
    return summary.build(root, kernels)


class _Summary:
    def __init__(
        self, solver: Solver, is_kernel: Callable[[cst.FunctionDef], bool], line_of: Callable[[cst.CSTNode], int]
    ) -> None:
        self._solver = solver
        self._is_kernel = is_kernel
        self._line_of = line_of

    def keep(self, roots: Sequence[Scope]) -> None:
        """Mark the nested functions and calls that the flow needs."""
        pending: list[Scope] = []

        def keep_terms(terms: Sequence[Term]) -> None:
            for term in self._solver.flat(terms):
                if term[0] == "f":
                    keep_scope(term[1])
                elif term[0] == "c":
                    keep_call(term[1], term[2])

        def keep_scope(scope: Scope) -> None:
            if not scope.kept:
                scope.kept = True
                pending.append(scope)
                if scope.parent is not None:
                    keep_scope(scope.parent)

        def keep_call(scope: Scope, index: int) -> None:
            if index not in scope.order:
                scope.order[index] = 0
                call = scope.calls[index]
                keep_terms(call.callee)
                for _, terms in call.arguments:
                    keep_terms(terms)
                for term in self._solver.resolve(call.callee):
                    if term[0] == "m":
                        keep_terms(term[1])

        for root in roots:
            keep_scope(root)
        while pending:
            scope = pending.pop()
            keep_terms([term for term, _ in scope.writes])
            keep_terms([term for term, _, _ in scope.unknown])
            for terms in scope.returns:
                keep_terms(terms)
            for child in scope.children:
                if isinstance(child.node, cst.FunctionDef) and self._is_kernel(child.node):
                    keep_scope(child)
            for index, call in enumerate(scope.calls):
                if self._may_matter(call):
                    keep_call(scope, index)

    def _may_matter(self, call: Call) -> bool:
        callee = self._solver.resolve(call.callee)
        if callee and all(self._is_settled(term) for term in callee):
            return False
        if any(term[0] in ("f", "p", "c") for term in callee):
            return True
        return any(_matters(term) for _, terms in call.arguments for term in self._solver.flat(terms))

    def _is_settled(self, term: Found) -> bool:
        """An operation, which has been applied already, or a method of something that was made here by one."""
        return term[0] == "o" or (term[0] == "m" and not self._solver.flat(term[1]))

    def _encode(self, terms: Sequence[Term], scope: Scope) -> str:
        words: dict[str, None] = {}
        for term in self._solver.flat(terms):
            word = self._word(term, scope)
            if word:
                words[word] = None
        return " ".join(sorted(words))

    def _word(self, term: Found, scope: Scope, *, flags: bool = False) -> str:
        tag = term[0]
        if tag in _SIGNS:
            return f"{_SIGNS[tag]}{term[1]}"
        if tag == "m":
            receiver = self._encode(term[1], scope)
            return " ".join(f"{word}!{term[2]}" for word in receiver.split()) or f"!{term[2]}"
        owner: Scope = term[1]
        if tag == "f":
            return _from(scope, owner.parent, f"@{owner.name}")
        if tag == "p":
            return _from(scope, owner, str(term[2])) if flags or _matters(term) else ""
        index = owner.order.get(term[2])
        item = "" if term[3] is None else f".{term[3]}"
        return "" if index is None else _from(scope, owner, f"#{index}{item}")

    def build(self, scope: Scope, kernels: Mapping[cst.CSTNode, Sequence[KernelArgument]]) -> Flow:
        calls = []
        lines = []
        for index in scope.order:
            call = scope.calls[index]
            callee = self._encode(call.callee, scope)
            # Arguments that lead nowhere stay: what is passed takes a parameter's default away.
            rows = tuple((keyword, self._encode(terms, scope)) for keyword, terms in call.arguments)
            outside = (":" in callee or "!" in callee) and any(_is_value(text) for _, text in rows)
            lines.append(self._line_of(call.node) if outside else 0)
            calls.append((callee + self._suffix(call.guards, scope), rows))
        written = self._events([(term, guards, "") for term, guards in scope.writes], scope)
        unknown = self._events([(term, guards, reason) for term, reason, guards in scope.unknown], scope)
        nested = tuple((child.name, self.build(child, kernels)) for child in scope.children if child.kept)
        own = tuple(kernels.get(scope.node, ()))
        flow = Flow(
            written, tuple(calls), (), unknown, self._returns(scope), nested, tuple(lines) if any(lines) else (), own
        )
        return flow if flow == Flow() else dataclasses.replace(flow, parameters=tuple(scope.parameters))

    def _events(self, events: Sequence[tuple[Term, Guards, str]], scope: Scope) -> tuple[str, ...]:
        """Encoded events, those left out that happen anyway, without a condition."""
        found: dict[tuple[str, str, str], None] = {}
        for term, guards, reason in events:
            # A container that is written changes what it holds, not the buffers in it.
            opened = [term] if reason else [one for one in self._solver.resolve([term]) if one[0] != "t"]
            for word in self._encode(opened, scope).split():
                if _is_value(word) and "@" not in word:
                    found[word, self._suffix(guards, scope), reason] = None
        return tuple(
            sorted(
                f"{word}{suffix}{'|' if reason else ''}{reason}"
                for word, suffix, reason in found
                if not suffix or (word, "", reason) not in found
            )
        )

    def _suffix(self, guards: Guards, scope: Scope) -> str:
        """``?flag`` or ``?-flag`` for each condition on a parameter."""
        words: dict[str, None] = {}
        for term, holds in guards:
            resolved = self._solver.resolve([term])
            if len(resolved) == 1 and resolved[0][0] == "p":
                word = self._word(resolved[0], scope, flags=True)
                if word:
                    words[f"?{'' if holds else '-'}{word}"] = None
        return "".join(sorted(words))

    def _returns(self, scope: Scope) -> tuple[str, ...]:
        whole: Terms = []
        items: list[Terms] = []
        for terms in scope.returns:
            for found in self._solver.resolve(terms):
                container = found[1] if found[0] == "t" else None
                if isinstance(container, Container) and not container.rest:
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


_SIGNS = {"x": ":", "o": "%", "k": "="}


def _is_value(text: str) -> bool:
    """Does a value's text name a buffer, a call's result or a function, rather than things from outside alone?"""
    return any(word.lstrip("^")[0] not in ":%=" for word in text.split())


def _matters(term: Found) -> bool:
    """Can a buffer be behind it?"""
    if term[0] == "p":
        tracked = term[1].tracked
        return tracked is None or term[2] in tracked
    return term[0] in ("f", "c")


def _from(scope: Scope, owner: Scope | None, text: str) -> str:
    """What stands for ``text`` of ``owner`` as seen from ``scope``; "" where it cannot be seen."""
    steps = 0
    at: Scope | None = scope
    while at is not owner:
        if at is None:
            return ""
        at = at.parent
        steps += 1
    return "^" * steps + text
