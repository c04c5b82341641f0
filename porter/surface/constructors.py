"""How a class is called, read from its source: ``__init__``, ``__new__``, the fields of a dataclass, or a base's."""

from __future__ import annotations

import re
from collections.abc import Iterator

from porter.surface.model import ClassFacts, Parameter, ParameterKind, Signature
from porter.surface.namespace import Definition, Program

# Bases are followed so far; a longer chain is a cycle.
_DEPTH = 20
_FIELD = re.compile(r"(?:dataclasses\.)?field\((.*)\)$")


def constructor(program: Program, module: str, fact: ClassFacts, depth: int = 0) -> Signature | None:
    """Signature of a class of ``module``, without the object itself; None where no source of the package says it.

    A default whose value is not written as such (``field(default_factory=...)``) is ``...``.
    """
    for name in ("__init__", "__new__"):
        for method in reversed(fact.methods):
            if method.name == name:
                return Signature(method.signature.parameters[1:], None)
    if is_dataclass(fact):
        rows = _fields(program, module, fact, depth)
        plain = [row for row in rows if row.kind is ParameterKind.POSITIONAL]
        named = [row for row in rows if row.kind is ParameterKind.KEYWORD_ONLY]
        return Signature((*plain, *named), None)
    for home, base in _bases(program, module, fact) if depth < _DEPTH else ():
        return constructor(program, home, base, depth + 1)
    return None


def is_dataclass(fact: ClassFacts) -> bool:
    """True for a class decorated with ``dataclass``."""
    return any(decorator.name.rpartition(".")[2] == "dataclass" for decorator in fact.decorators)


def _bases(program: Program, module: str, fact: ClassFacts) -> Iterator[tuple[str, ClassFacts]]:
    """Base classes that the package defines, and their modules."""
    for base in fact.bases:
        if base.keyword is None:
            found = program.resolve(module, base.text, history=True)
            if found is not None and isinstance(found.target, Definition) and isinstance(found.target.fact, ClassFacts):
                yield found.target.module, found.target.fact


def _fields(program: Program, module: str, fact: ClassFacts, depth: int) -> list[Parameter]:
    """Parameters of a dataclass's ``__init__``, inherited ones first."""
    rows: dict[str, Parameter] = {}
    for home, base in reversed([*_bases(program, module, fact)]) if depth < _DEPTH else ():
        if is_dataclass(base):
            rows.update({row.name: row for row in _fields(program, home, base, depth + 1)})
    options = next((one.arguments or () for one in fact.decorators if one.name.rpartition(".")[2] == "dataclass"), ())
    keyword_only = any(option.keyword == "kw_only" and option.text == "True" for option in options)
    for attribute in fact.attributes:
        annotation = attribute.annotation
        if annotation is None or re.match(r"(typing\.)?ClassVar\b", annotation):
            continue
        if re.fullmatch(r"(dataclasses\.)?KW_ONLY", annotation):
            keyword_only = True
            continue
        default: str | None = attribute.value or None
        only = keyword_only
        call = _FIELD.match(default) if default is not None else None
        if call is not None:
            if re.search(r"\binit=False\b", call[1]):
                rows.pop(attribute.name, None)
                continue
            only = only or bool(re.search(r"\bkw_only=True\b", call[1]))
            plain = re.search(r"\bdefault=([^,()]+)", call[1])
            default = plain[1] if plain else "..." if "default" in call[1] else None
        kind = ParameterKind.KEYWORD_ONLY if only else ParameterKind.POSITIONAL
        rows[attribute.name] = Parameter(attribute.name, kind, default, annotation)
    return list(rows.values())
