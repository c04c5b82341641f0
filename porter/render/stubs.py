"""Text of names that no override supplies: stubs that raise, and values carried over."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

from porter.drift import signature_text
from porter.overrides import override_path
from porter.plan import EXCEPTION_BASES, Entry, Origin, State
from porter.surface.model import Module, Parameter, ParameterKind, Signature, SymbolKind

UNAVAILABLE = "neuron_unavailable"
_ANY = Signature((Parameter("args", ParameterKind.VAR_POSITIONAL), Parameter("kwargs", ParameterKind.VAR_KEYWORD)))
_WRAPPERS = {
    SymbolKind.STATICMETHOD: "@staticmethod\n",
    SymbolKind.CLASSMETHOD: "@classmethod\n",
    SymbolKind.PROPERTY: "@property\n",
}


def message(entry: Entry, module: Module) -> str:
    """What a stub says when it is called."""
    name = entry.symbol.qualname
    if entry.state is State.EXCLUDED:
        return f"{name}: not supported on Neuron (basic mode)"
    where = override_path(module.name, is_package=module.is_package)
    return f"{name}: not implemented on Neuron yet; overrides/{where} would supply it"


def function(entry: Entry, module: Module) -> str:
    """A function or method that raises, with upstream's exact signature."""
    symbol = entry.symbol
    is_member = "." in symbol.qualname
    signature = symbol.signature if symbol.signature is not None else _with_self(symbol.kind)
    name = symbol.qualname.rpartition(".")[2]
    prefix = _WRAPPERS.get(symbol.kind, "") if is_member else ""
    head = "async def" if symbol.is_async else "def"
    return f"{prefix}{head} {name}{signature_text(signature)}:\n    raise NotImplementedError({json.dumps(message(entry, module))})"


def _with_self(kind: SymbolKind) -> Signature:
    first = {SymbolKind.METHOD: "self", SymbolKind.PROPERTY: "self", SymbolKind.CLASSMETHOD: "cls"}.get(kind)
    if first is None:
        return _ANY
    if kind is SymbolKind.PROPERTY:
        return Signature((Parameter("self"),))
    return replace(_ANY, parameters=(Parameter(first), *_ANY.parameters))


def value(entry: Entry, module: Module) -> str:
    """An assignment: the carried value, or a stand-in that raises when it is used."""
    symbol = entry.symbol
    name = symbol.qualname.rpartition(".")[2]
    annotation = f": {symbol.annotation}" if symbol.annotation and not symbol.annotation.startswith("Final") else ""
    if entry.origin is Origin.CARRIED:
        from porter.plan import is_closed

        if is_closed(symbol.value):
            return f"{name}{annotation} = {symbol.value}"
    if symbol.kind is SymbolKind.ATTRIBUTE and annotation and symbol.value is None:
        return f"{name}{annotation}"
    return f"{name} = Unavailable({json.dumps(symbol.qualname)}, {json.dumps(message(entry, module))})"


def statement(entry: Entry, members: Sequence[Entry], module: Module) -> str:
    """Text of any name that no override supplies."""
    kind = entry.symbol.kind
    if kind is SymbolKind.CLASS:
        return klass(entry, members, module)
    if kind in (SymbolKind.CONSTANT, SymbolKind.ATTRIBUTE):
        return value(entry, module)
    return function(entry, module)


def klass(entry: Entry, members: Sequence[Entry], module: Module) -> str:
    """A class whose methods raise; one that the plan carries over keeps its bases and values."""
    symbol = entry.symbol
    bases = (
        [base.text for base in symbol.bases if base.keyword is None]
        if entry.origin is Origin.CARRIED
        else _kept_bases(entry)
    )
    head = f"class {symbol.qualname.rpartition('.')[2]}" + (f"({', '.join(bases)})" if bases else "") + ":"
    body = member_blocks(entry, members, module)
    names = {member.symbol.qualname.rpartition(".")[2] for member in members}
    if entry.origin is not Origin.CARRIED and "__init__" not in names and not bases:
        text = json.dumps(message(entry, module))
        body.append(f"def __init__(self, *args, **kwargs):\n    raise NotImplementedError({text})")
    lines = [f'"""Upstream\'s ``{symbol.id}``."""', *body]
    return head + "\n" + "\n\n".join(indent(line) for line in lines)


def member_blocks(owner: Entry, members: Sequence[Entry], module: Module) -> list[str]:
    """Text of a class's own members, nested classes with theirs."""
    depth = owner.symbol.qualname.count(".") + 1
    blocks = []
    for member in members:
        if member.symbol.qualname.count(".") != depth:
            continue
        inner = [m for m in members if m.symbol.qualname.startswith(member.symbol.qualname + ".")]
        blocks.append(statement(member, inner, module))
    return blocks


def indent(text: str) -> str:
    """The text, four columns to the right."""
    return "\n".join("    " + line if line else line for line in text.splitlines())


def _kept_bases(entry: Entry) -> list[str]:
    """Bases that a stub keeps: those that callers catch or compare by."""
    return [base.text for base in entry.symbol.bases if base.keyword is None and base.text in EXCEPTION_BASES]


def needs_unavailable(blocks: Iterable[str]) -> bool:
    """True when any block uses the stand-in class."""
    return any("Unavailable(" in block for block in blocks)
