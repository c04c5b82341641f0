"""One emitted module: what it imports, re-exports, defines and stubs."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from porter.config import ENGINE, VENDOR_PACKAGES
from porter.errors import RenderError
from porter.lock import Lock
from porter.overrides import BACKEND_SURFACE, override_path
from porter.plan import EmittedModule, Entry, Origin, State
from porter.render import stubs
from porter.render.merge import Merged, merge
from porter.surface.model import Export, Symbol, SymbolKind

_NONE = Merged("", (), ())
_TYPING = {
    "Any", "Callable", "ClassVar", "Dict", "Final", "Generator", "Iterable", "Iterator", "List", "Literal", "Mapping", "NamedTuple", "Optional",
    "Sequence", "Set", "Tuple", "Type", "TypeVar", "Union",
}  # fmt: skip
_ENUMS = {"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"}


def context(
    emitted: EmittedModule, lock: Lock, overrides_folder: str, public: Mapping[str, Symbol]
) -> dict[str, object]:
    """Everything that ``module.py.j2`` prints.

    Parameters:
        public: symbol id to symbol, over all emitted modules.
    """
    module = emitted.module
    top = [entry for entry in emitted.entries if not entry.is_member]
    overridden = [entry for entry in top if entry.origin is Origin.OVERRIDE]
    merged = _merged(emitted, overridden, overrides_folder)
    rest = [entry for entry in top if entry.origin is not Origin.OVERRIDE]
    known = _known_names(emitted, rest, merged)
    texts = [
        stubs.statement(_closed(entry, known), [_closed(m, known) for m in _members(emitted, entry)], module)
        for entry in rest
    ]
    runtime, typing_only = _imports(emitted, rest, merged)
    if stubs.needs_unavailable([*texts, *merged.definitions]):
        runtime.append(f"from {stubs.UNAVAILABLE} import Unavailable")
    definitions = [*merged.definitions]
    carried = [text for entry, text in zip(rest, texts, strict=True) if entry.origin is Origin.CARRIED]
    stubbed = [text for entry, text in zip(rest, texts, strict=True) if entry.origin is not Origin.CARRIED]
    return {
        "origin": _origin(emitted, lock),
        "advice": _advice(emitted, overrides_folder, overridden),
        "summary": _summary(emitted, top),
        "detail": _escaped(merged.docstring),
        "imports": _unique([*merged.imports, *runtime]),
        "type_imports": typing_only,
        "exports": _exports(emitted, public),
        "aliases": _aliases(emitted, public),
        "blocks": [*carried, *(text.strip("\n") for text in definitions), *stubbed],
        "exports_all": _exports_all(emitted),
    }


def _merged(emitted: EmittedModule, overridden: Sequence[Entry], folder: str) -> Merged:
    if emitted.override is None or not overridden:
        return _NONE
    members = {}
    for entry in overridden:
        rest = [member for member in _members(emitted, entry) if member.origin is not Origin.OVERRIDE]
        if entry.symbol.kind is SymbolKind.CLASS and rest:
            members[entry.symbol.qualname] = "\n\n".join(
                stubs.indent(block) for block in stubs.member_blocks(entry, rest, emitted.module)
            )
    names = [entry.symbol.qualname for entry in overridden]
    return merge(f"{folder}/{emitted.override.path}", emitted.override.data, names, members)


def _members(emitted: EmittedModule, entry: Entry) -> list[Entry]:
    prefix = entry.symbol.qualname + "."
    return [member for member in emitted.entries if member.symbol.qualname.startswith(prefix)]


def _origin(emitted: EmittedModule, lock: Lock) -> str:
    source = lock.source(ENGINE if emitted.package == BACKEND_SURFACE else emitted.package)
    if source is None:
        return emitted.module.path
    name = source.requirement.partition("==")[0] if source.filename else source.name
    return f"{name} {source.version}, {emitted.module.path}"


def _advice(emitted: EmittedModule, folder: str, overridden: Sequence[Entry]) -> str:
    where = f"{folder}/{override_path(emitted.module.name, is_package=emitted.module.is_package)}"
    if overridden:
        return f"Bodies come from {where}: edit there, then run `porter sync`."
    if any(entry.state is not State.IMPLEMENTED for entry in emitted.entries):
        return f"To supply a body, run `porter new SYMBOL`, edit {where}, then run `porter sync`."
    return "Run `porter sync` after an upstream change."


def _summary(emitted: EmittedModule, top: Sequence[Entry]) -> str:
    what = "Neuron backend of upstream's" if emitted.package == BACKEND_SURFACE else "Neuron drop-in for upstream's"
    name = emitted.module.name
    if emitted.package == BACKEND_SURFACE and top:
        names = ", ".join(entry.symbol.qualname for entry in top)
        return f"{what} ``{name}``: {names}."
    return f"{what} ``{name}``."


def _escaped(docstring: str) -> str:
    return docstring.replace("\\", "\\\\").replace('"""', '\\"\\"\\"').strip()


def _unique(lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(line.strip() for line in lines))


def _imports(emitted: EmittedModule, rest: Sequence[Entry], merged: Merged) -> tuple[list[str], list[str]]:
    """Import lines that carried values and stubs need: at run time, and for annotations only."""
    names = dict(emitted.module.names)
    local = {entry.symbol.qualname for entry in emitted.entries} | {export.name for export in emitted.module.exports}
    bound = {name for line in merged.imports for name in _bound_by(line)}
    runtime: dict[str, str] = {}
    typing_only: dict[str, str] = {}
    for entry in emitted.entries:
        if entry.origin is Origin.OVERRIDE or (entry not in rest and not entry.is_member):
            continue
        values, annotations = _texts(entry)
        for roots, table in ((values, runtime), (annotations, typing_only)):
            for root in sorted({root for text in roots for root in _roots(text, strings=table is typing_only)}):
                line = _import_line(root, names.get(root), emitted.package)
                if line and root not in local and root not in bound:
                    table[root] = line
    for root in runtime:
        typing_only.pop(root, None)
    lines = sorted(runtime.values())
    if typing_only:
        lines.insert(0, "from typing import TYPE_CHECKING")
    return lines, sorted(set(typing_only.values()))


def _known_names(emitted: EmittedModule, rest: Sequence[Entry], merged: Merged) -> frozenset[str]:
    """Root names that a default value may use: builtins, what is imported, and what is carried over before any stub."""
    names = dict(emitted.module.names)
    carried = {entry.symbol.qualname for entry in rest if entry.origin is Origin.CARRIED}
    imported = {
        root
        for root in {*names, *_TYPING, *_ENUMS, "torch", "enum"}
        if _import_line(root, names.get(root), emitted.package)
    }
    bound = {name for line in merged.imports for name in _bound_by(line)}
    return frozenset({*dir(builtins), *carried, *imported, *bound})


def _closed(entry: Entry, known: frozenset[str]) -> Entry:
    """The entry with ``...`` in place of default values that mean nothing outside the upstream."""
    signature = entry.symbol.signature
    if signature is None or all(p.default is None or _roots(p.default) <= known for p in signature.parameters):
        return entry
    parameters = tuple(
        replace(p, default="...") if p.default is not None and not _roots(p.default) <= known else p
        for p in signature.parameters
    )
    return replace(entry, symbol=replace(entry.symbol, signature=replace(signature, parameters=parameters)))


def _texts(entry: Entry) -> tuple[list[str], list[str]]:
    symbol = entry.symbol
    values: list[str] = []
    annotations: list[str] = [symbol.annotation] if symbol.annotation else []
    if entry.origin is Origin.CARRIED:
        values.extend(base.text for base in symbol.bases if base.keyword is None)
        values.extend([symbol.value] if symbol.value else [])
    if symbol.signature is not None:
        annotations.extend([symbol.signature.returns] if symbol.signature.returns else [])
        for parameter in symbol.signature.parameters:
            values.extend([parameter.default] if parameter.default else [])
            annotations.extend([parameter.annotation] if parameter.annotation else [])
    return values, annotations


def _roots(text: str, *, strings: bool = False) -> set[str]:
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError):
        return set()
    roots = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in ast.walk(tree) if strings else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            roots.add(node.value)
    return roots


def _bound_by(line: str) -> set[str]:
    return {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.parse(line).body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }


def _import_line(root: str, target: str | None, package: str) -> str | None:
    """The import that gives a root name its meaning, where that is possible without the upstream."""
    if target is None:
        if root in ("torch", "enum", "typing"):
            return f"import {root}"
        if root in _TYPING:
            return f"from typing import {root}"
        return f"from enum import {root}" if root in _ENUMS else None
    head = target.partition(".")[0]
    if head not in sys.stdlib_module_names and head != "torch" and head not in VENDOR_PACKAGES:
        return None
    if head in VENDOR_PACKAGES and package == BACKEND_SURFACE:
        return None
    owner, _, name = target.rpartition(".")
    if not owner:
        return f"import {target}" if target == root else f"import {target} as {root}"
    if target == root or (head == root and target.startswith(root + ".")):
        return f"import {target}"
    return f"from {owner} import {name}" if name == root else f"from {owner} import {name} as {root}"


def _exports(emitted: EmittedModule, public: Mapping[str, Symbol]) -> list[str]:
    return _unique(line for export in emitted.module.exports if (line := _export(emitted, export, public)))


def _export(emitted: EmittedModule, export: Export, public: Mapping[str, Symbol]) -> str:
    """The import line that an exported name needs, "" when this module defines what it stands for."""
    if export.is_module:
        owner, _, name = export.target.rpartition(".")
        if not owner:
            return f"import {export.target} as {export.name}"
        return f"from {owner} import {name} as {export.name}"
    owner, qualname = _target(emitted, export, public)
    if owner == emitted.module.name:
        return ""
    return f"from {owner} import {qualname} as {export.name}"


def _aliases(emitted: EmittedModule, public: Mapping[str, Symbol]) -> list[str]:
    """Assignments of names that stand for another name of this module."""
    targets = [
        (export.name, *_target(emitted, export, public)) for export in emitted.module.exports if not export.is_module
    ]
    return [f"{name} = {qualname}" for name, owner, qualname in targets if owner == emitted.module.name]


def _target(emitted: EmittedModule, export: Export, public: Mapping[str, Symbol]) -> tuple[str, str]:
    """Module and qualified name of what an exported name stands for.

    Raises:
        RenderError: nothing that is emitted goes by that name.
    """
    symbol = public.get(export.target)
    if symbol is None:
        raise RenderError(
            f"{export.name} stands for {export.target}, which is not emitted", path=emitted.path, fix="report this"
        )
    return symbol.module, symbol.qualname


def _exports_all(emitted: EmittedModule) -> list[str] | None:
    if emitted.module.exports_all is None:
        return None
    defined = {entry.symbol.qualname for entry in emitted.entries if not entry.is_member} | {
        export.name for export in emitted.module.exports
    }
    return [name for name in emitted.module.exports_all if name in defined or emitted.module.is_package]
