"""What is emitted, and why: surface, overrides and features joined. Every upstream name ends in exactly one state."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cached_property

from porter.config import VENDOR_PACKAGES, Config
from porter.drift import interface_digest
from porter.findings import Finding
from porter.lock import Lock
from porter.matching import kernel_differences, signature_differences
from porter.overrides import BACKEND_SURFACE, PINS_NAME, OverrideFile, Overrides, Pin
from porter.surface.model import ClassFacts, FunctionFacts, Module, Surface, Symbol, SymbolKind

BACKEND_OUT = "deepinfer/model_executor/layers/tilelang_ops/neuron"
VENDOR_OUT = "deepinfer/neuron_ops/vendor"


class State(StrEnum):
    """Where a name stands."""

    IMPLEMENTED = "implemented"
    EXCLUDED = "excluded"
    PENDING = "pending"
    UNCLASSIFIED = "unclassified"


class Origin(StrEnum):
    """What implements an implemented name: a hand-written body, or the plan itself (a constant, enum or record carried over)."""

    OVERRIDE = "override"
    CARRIED = "carried"
    NONE = ""


class Freshness(StrEnum):
    """How an override stands to upstream's body."""

    FRESH = "fresh"
    STALE = "stale"
    MISMATCHED = "mismatched"
    UNPINNED = "unpinned"
    NONE = ""


@dataclass(frozen=True)
class Entry:
    """One upstream name in the plan.

    ``feature``/``reason``: the switch that excludes it and why, or why it is pending.
    ``override``: path of the override file that supplies it. ``differences``: how that override fails upstream's signature.
    """

    symbol: Symbol
    state: State
    origin: Origin = Origin.NONE
    feature: str = ""
    reason: str = ""
    override: str = ""
    freshness: Freshness = Freshness.NONE
    differences: tuple[str, ...] = ()

    @property
    def is_member(self) -> bool:
        """True for a method, property or attribute of a class."""
        return "." in self.symbol.qualname


@dataclass(frozen=True)
class EmittedModule:
    """One file of the emitted tree that mirrors an upstream module.

    ``path``: relative to the output folder, posix. ``package``: ``tilelang_ops`` or the vendor package.
    """

    path: str
    package: str
    module: Module
    entries: tuple[Entry, ...]
    override: OverrideFile | None = None


@dataclass(frozen=True)
class CopiedFile:
    """One hand-written file emitted as it is."""

    path: str
    source: OverrideFile


@dataclass(frozen=True)
class Plan:
    """All that will be emitted, and the findings met on the way."""

    modules: tuple[EmittedModule, ...]
    copies: tuple[CopiedFile, ...]
    findings: tuple[Finding, ...]
    config: Config
    lock: Lock

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """Every entry, modules in order."""
        return tuple(entry for module in self.modules for entry in module.entries)

    @cached_property
    def by_id(self) -> Mapping[str, Entry]:
        """Entries by symbol id."""
        return {entry.symbol.id: entry for entry in self.entries}


def emitted_surfaces(lock: Lock) -> tuple[Surface, ...]:
    """The surfaces that are emitted: the Ascend backend and the vendor packages."""
    return tuple(surface for surface in lock.surfaces if surface.source in (BACKEND_SURFACE, *VENDOR_PACKAGES))


def emitted_path(module: Module, surface: str) -> str:
    """Where an upstream module is emitted, relative to the output folder."""
    if surface == BACKEND_SURFACE:
        return f"{BACKEND_OUT}/{module.name.removeprefix(BACKEND_SURFACE + '.')}.py"
    stem = f"{VENDOR_OUT}/{module.name.replace('.', '/')}"
    return f"{stem}/__init__.py" if module.is_package else f"{stem}.py"


def make_plan(config: Config, lock: Lock, overrides: Overrides) -> Plan:
    """Join everything. Nothing is raised for a name that does not fit: it becomes a finding."""
    classifier = _Classifier(config)
    modules: list[EmittedModule] = []
    findings: list[Finding] = []
    served: set[str] = set()
    for surface in emitted_surfaces(lock):
        symbols = {symbol.id: symbol for symbol in surface.symbols}
        members = _members(surface)
        for module in surface.modules:
            file = overrides.for_module(module.name)
            top = [symbols[identity] for identity in module.symbols if identity in symbols]
            if surface.source == BACKEND_SURFACE and not top:
                continue
            entries: list[Entry] = []
            for symbol in top:
                entry = _entry(symbol, file, classifier, members.get(symbol.id, ()), overrides)
                entries.append(entry)
                entries.extend(_member_entries(entry, members.get(symbol.id, ()), file, classifier))
            if file is not None:
                served.add(file.path)
            modules.append(
                EmittedModule(emitted_path(module, surface.source), surface.source, module, tuple(entries), file)
            )
    plan = Plan(tuple(modules), _copies(overrides), (), config, lock)
    findings.extend(_classification_findings(plan, classifier))
    findings.extend(_override_findings(plan, overrides, served))
    findings.extend(_pin_findings(plan, overrides))
    return replace(plan, findings=tuple(findings))


def _members(surface: Surface) -> Mapping[str, tuple[Symbol, ...]]:
    table: dict[str, list[Symbol]] = {}
    for symbol in surface.symbols:
        if symbol.owner:
            table.setdefault(symbol.owner, []).append(symbol)
    return {owner: tuple(rows) for owner, rows in table.items()}


def _copies(overrides: Overrides) -> tuple[CopiedFile, ...]:
    rows = []
    for file in overrides.files:
        if file.module or file.path.endswith(".pyi"):
            continue
        head, _, rest = file.path.partition("/")
        if head == "tilelang_ops" and rest != "__init__.py":
            rows.append(CopiedFile(f"{BACKEND_OUT}/{rest}", file))
        elif head == "shared":
            rows.append(CopiedFile(f"{VENDOR_OUT}/{rest}", file))
        elif head == "engine" and rest != "__init__.py":
            rows.append(CopiedFile(rest, file))
    return tuple(rows)


class _Patterns[T]:
    """Rows of porter.toml by pattern; exact names are looked up, the others tried one by one."""

    def __init__(self, rows: Iterable[tuple[str, str, T]]) -> None:
        self.exact: dict[str, list[tuple[str, str, T]]] = {}
        self.wild: list[tuple[str, str, T]] = []
        for row in rows:
            if any(sign in row[1] for sign in "*?["):
                self.wild.append(row)
            else:
                self.exact.setdefault(row[1], []).append(row)

    def matches(self, symbol: Symbol) -> list[tuple[str, str, T]]:
        """Every (table, pattern, row) that names the symbol by its id or an alias."""
        names = (symbol.id, *symbol.aliases)
        found = [row for name in names for row in self.exact.get(name, ())]
        found.extend(row for row in self.wild if any(fnmatchcase(name, row[1]) for name in names))
        return found


class _Classifier:
    """Features and pending rows of porter.toml, remembering which patterns matched."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.matched: set[tuple[str, str]] = set()
        self.features = _Patterns((f"features.{f.name}", pattern, f) for f in config.features for pattern in f.symbols)
        self.rows = _Patterns(("pending", pattern, row) for row in config.pending for pattern in row.symbols)

    def feature(self, symbol: Symbol) -> tuple[str, str] | None:
        """The first feature (in porter.toml's order) that is off and names this symbol, with its reason."""
        found = self.features.matches(symbol)
        self.matched.update(row[:2] for row in found)
        off = [feature for _, _, feature in found if not feature.enabled]
        first = min(off, key=self.config.features.index, default=None)
        return (first.name, first.reason) if first else None

    def in_feature(self, symbol: Symbol) -> bool:
        """True when a feature names the symbol, on or off."""
        return bool(self.features.matches(symbol))

    def pending(self, symbol: Symbol) -> str | None:
        """The reason under which a symbol is listed as pending."""
        found = self.rows.matches(symbol)
        self.matched.update(row[:2] for row in found)
        return next((row.reason or "listed in porter.toml" for _, _, row in found), None)

    def unmatched(self) -> Iterator[tuple[str, str]]:
        """(table, pattern) of every pattern that matched nothing."""
        for feature in self.config.features:
            for pattern in feature.symbols:
                if (f"features.{feature.name}", pattern) not in self.matched:
                    yield f"features.{feature.name}", pattern
        for row in self.config.pending:
            for pattern in row.symbols:
                if ("pending", pattern) not in self.matched:
                    yield "pending", pattern


def _definition(file: OverrideFile | None, name: str) -> FunctionFacts | ClassFacts | str | None:
    """What an override file defines under a name: a function, a class, or "constant"."""
    if file is None or file.facts is None or name in file.unwritten:
        return None
    for function in file.facts.functions:
        if function.name == name:
            return function
    for klass in file.facts.classes:
        if klass.name == name:
            return klass
    return "constant" if any(constant.name == name for constant in file.facts.constants) else None


def _entry(
    symbol: Symbol, file: OverrideFile | None, classifier: _Classifier, members: Iterable[Symbol], overrides: Overrides
) -> Entry:
    feature = classifier.feature(symbol)
    pending = classifier.pending(symbol)
    definition = _definition(file, symbol.qualname)
    if definition is not None:
        assert file is not None
        differences = _differences(symbol, definition)
        freshness = _freshness(symbol, overrides.pins.get(symbol.id), differences)
        if feature is None:
            return Entry(
                symbol,
                State.IMPLEMENTED,
                Origin.OVERRIDE,
                override=file.path,
                freshness=freshness,
                differences=differences,
            )
        # Written already, and held to its promise, though its feature is off.
        return Entry(symbol, State.EXCLUDED, Origin.NONE, *feature, file.path, freshness, differences)
    if is_carried(symbol, members):
        # A value needs no device: it is there whatever is off.
        return Entry(symbol, State.IMPLEMENTED, Origin.CARRIED)
    if feature is not None:
        return Entry(symbol, State.EXCLUDED, Origin.NONE, *feature)
    if file is not None and symbol.qualname in file.unwritten:
        return Entry(
            symbol, State.PENDING, reason=f"its override in {file.path} is a skeleton still", override=file.path
        )
    if pending is not None:
        return Entry(symbol, State.PENDING, reason=pending)
    if classifier.in_feature(symbol):
        return Entry(symbol, State.PENDING, reason="its feature is on and no override supplies it yet")
    return Entry(symbol, State.UNCLASSIFIED, reason="nothing in porter.toml or overrides/ decides about it")


def _freshness(symbol: Symbol, pin: Pin | None, differences: tuple[str, ...]) -> Freshness:
    if differences:
        return Freshness.MISMATCHED
    if pin is None:
        return Freshness.UNPINNED
    return Freshness.FRESH if (pin.body, pin.interface) == (symbol.body, interface_digest(symbol)) else Freshness.STALE


def _member_entries(
    owner: Entry, members: Iterable[Symbol], file: OverrideFile | None, classifier: _Classifier
) -> Iterator[Entry]:
    klass = _definition(file, owner.symbol.qualname) if owner.state is State.IMPLEMENTED else None
    for member in members:
        if owner.state is not State.IMPLEMENTED or owner.origin is Origin.CARRIED:
            yield replace(owner, symbol=member, override="", freshness=Freshness.NONE, differences=())
            continue
        feature = classifier.feature(member)
        found = _class_member(klass, member.qualname.split(".")[1:]) if isinstance(klass, ClassFacts) else None
        if feature is not None and found is None:
            yield Entry(member, State.EXCLUDED, feature=feature[0], reason=feature[1])
        elif found is not None or not isinstance(klass, ClassFacts):
            differences = _differences(member, found) if found is not None else ()
            freshness = (
                Freshness.MISMATCHED
                if differences
                else owner.freshness if owner.freshness is not Freshness.MISMATCHED else Freshness.FRESH
            )
            yield Entry(
                member,
                State.IMPLEMENTED,
                Origin.OVERRIDE,
                override=owner.override,
                freshness=freshness,
                differences=differences,
            )
        elif member.kind is SymbolKind.ATTRIBUTE and is_carried(member, ()):
            yield Entry(member, State.IMPLEMENTED, Origin.CARRIED)
        elif (reason := classifier.pending(member)) is not None:
            yield Entry(member, State.PENDING, reason=reason)
        else:
            yield Entry(
                member,
                State.UNCLASSIFIED,
                reason=f"the override of {owner.symbol.qualname} does not define it and nothing in porter.toml decides",
            )


def _class_member(klass: ClassFacts, names: list[str]) -> FunctionFacts | ClassFacts | str | None:
    head, *rest = names
    for inner in klass.classes:
        if inner.name == head:
            return _class_member(inner, rest) if rest else inner
    if rest:
        return None
    for method in klass.methods:
        if method.name == head:
            return method
    if head in klass.instance_attributes or any(attribute.name == head for attribute in klass.attributes):
        return "constant"
    return None


def _differences(symbol: Symbol, definition: FunctionFacts | ClassFacts | str) -> tuple[str, ...]:
    function_like = symbol.kind in (
        SymbolKind.FACTORY,
        SymbolKind.FUNCTION,
        SymbolKind.METHOD,
        SymbolKind.STATICMETHOD,
        SymbolKind.CLASSMETHOD,
    )
    if isinstance(definition, FunctionFacts):
        if symbol.kind is SymbolKind.CLASS:
            return ("upstream has a class of this name, the override a function",)
        if not function_like or symbol.signature is None:
            return ()
        found = list(signature_differences(symbol.signature, definition.signature))
        if symbol.contract is not None and definition.contract is not None and symbol.kind is SymbolKind.FACTORY:
            found.extend(kernel_differences(symbol.contract, definition.contract))
        if symbol.is_async != definition.is_async:
            found.append("one is async, the other is not")
        return tuple(found)
    if isinstance(definition, ClassFacts) and function_like:
        return ("upstream has a function of this name, the override a class",)
    return ()


# What a carried value may be made of: literals, containers and arithmetic of them, and torch's dtypes.
_CLOSED = (
    ast.Constant,
    ast.Tuple,
    ast.List,
    ast.Dict,
    ast.Set,
    ast.UnaryOp,
    ast.BinOp,
    ast.operator,
    ast.unaryop,
    ast.Load,
)


def is_closed(text: str | None) -> bool:
    """True for a value that means the same anywhere: literals, arithmetic and containers of them, ``torch.<dtype>``."""
    if text is None or len(text) > 4000:
        return False
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError):
        return False
    return _closed(tree.body)


def _closed(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id == "torch"
    if isinstance(node, ast.Call):
        return (
            isinstance(node.func, ast.Name)
            and node.func.id == "float"
            and len(node.args) == 1
            and not node.keywords
            and isinstance(node.args[0], ast.Constant)
        )
    return isinstance(node, _CLOSED) and all(_closed(child) for child in ast.iter_child_nodes(node))


_ENUM_BASES = {
    "Enum",
    "enum.Enum",
    "IntEnum",
    "enum.IntEnum",
    "StrEnum",
    "enum.StrEnum",
    "str",
    "int",
    "Flag",
    "IntFlag",
    "enum.Flag",
    "enum.IntFlag",
}
EXCEPTION_BASES = {
    "Exception",
    "RuntimeError",
    "ValueError",
    "TypeError",
    "KeyError",
    "NotImplementedError",
    "AttributeError",
    "OSError",
}


def is_carried(symbol: Symbol, members: Iterable[Symbol]) -> bool:
    """True when the plan can emit the symbol whole: a closed constant, an enum or a record of closed values, a bare exception."""
    if symbol.kind in (SymbolKind.CONSTANT, SymbolKind.ATTRIBUTE):
        return not symbol.opaque and is_closed(symbol.value)
    if symbol.kind is not SymbolKind.CLASS or symbol.opaque:
        return False
    rows = list(members)
    bases = {base.text for base in symbol.bases if base.keyword is None}
    attributes_only = all(member.kind is SymbolKind.ATTRIBUTE for member in rows)
    if bases and bases <= _ENUM_BASES and bases & {b for b in _ENUM_BASES if b not in ("str", "int")}:
        return (
            attributes_only and bool(rows) and all(is_closed(member.value) for member in rows) and not symbol.decorators
        )
    if bases and bases <= EXCEPTION_BASES:
        return not rows and not symbol.decorators
    return False


_CALLED = frozenset(
    {SymbolKind.FUNCTION, SymbolKind.FACTORY, SymbolKind.METHOD, SymbolKind.STATICMETHOD, SymbolKind.CLASSMETHOD}
)


def _classification_findings(plan: Plan, classifier: _Classifier) -> Iterator[Finding]:
    toml = plan.config.file
    for entry in plan.entries:
        if entry.state is State.UNCLASSIFIED and (not entry.is_member or _owner_decided(plan, entry)):
            yield Finding(
                "PT010",
                f"nothing decides about {entry.symbol.id}",
                symbol=entry.symbol.id,
                path=toml,
                expected="an override, a feature that names it, or a [[pending]] row",
                found=entry.reason,
                fix=f"porter new {entry.symbol.id}",
            )
        symbol = entry.symbol
        if symbol.opaque and symbol.signature is None and symbol.kind in _CALLED and entry.state is not State.EXCLUDED:
            yield Finding(
                "PT013",
                f"{symbol.id}: {symbol.opaque}",
                symbol=symbol.id,
                path=toml,
                expected="arguments that a source or a declaration tells",
                found="neither",
                fix=f"declare it in {plan.config.overrides}/vendor/{symbol.module.replace('.', '/')}.pyi",
            )
        if (
            entry.state in (State.IMPLEMENTED, State.EXCLUDED)
            and not entry.is_member
            and entry.origin is not Origin.CARRIED
        ):
            exact = next(
                (
                    p
                    for row in plan.config.pending
                    for p in row.symbols
                    if p == entry.symbol.id or p in entry.symbol.aliases
                ),
                None,
            )
            if exact is not None:
                yield Finding(
                    "PT012",
                    f"{exact} is listed as pending but is {entry.state}",
                    symbol=entry.symbol.id,
                    path=toml,
                    line=plan.config.line_of(exact),
                    fix=f"remove {exact!r} from [[pending]] in {toml}",
                )
    for table, pattern in classifier.unmatched():
        yield Finding(
            "PT011",
            f"{pattern!r} in [{table}] matches no upstream name",
            path=toml,
            line=plan.config.line_of(f'"{pattern}"'),
            expected="a symbol id, a public alias, or a pattern over them",
            found="no match",
            fix=f"correct or remove {pattern!r} in {toml}",
        )


def _owner_decided(plan: Plan, entry: Entry) -> bool:
    found = plan.by_id.get(entry.symbol.owner)
    return found is None or found.state is not State.UNCLASSIFIED


def _override_findings(plan: Plan, overrides: Overrides, served: set[str]) -> Iterator[Finding]:
    by_file = {module.override.path: module for module in plan.modules if module.override is not None}
    for file in overrides.files:
        if not file.module or file.facts is None:
            continue
        where = f"{overrides.folder}/{file.path}"
        if file.path not in served:
            yield Finding(
                "PT020",
                f"{file.module} does not exist upstream",
                symbol=file.module,
                path=where,
                line=1,
                expected="an override file named after an upstream module",
                found="no such module",
                fix=f"move its bodies to where upstream has them now, or delete {where}",
            )
            continue
        module = by_file[file.path]
        known = {entry.symbol.qualname for entry in module.entries}
        used = _reachable(file, known)
        heads: tuple[FunctionFacts | ClassFacts, ...] = (*file.facts.functions, *file.facts.classes)
        for definition in heads:
            if definition.name in known or definition.name.startswith("_") or definition.name in used:
                continue
            yield Finding(
                "PT020",
                f"{definition.name} is no name of {file.module} and no override uses it",
                symbol=f"{file.module}.{definition.name}",
                path=where,
                line=definition.line,
                expected="an upstream name, or a helper that one of them uses",
                found="neither",
                fix=f"rename it to upstream's name or delete it from {where}",
            )
    files = {file.path: file for file in overrides.files}
    for entry in plan.entries:
        if not entry.override:
            continue
        where, line = f"{overrides.folder}/{entry.override}", _line_of(files[entry.override], entry)
        if entry.freshness is Freshness.MISMATCHED:
            for difference in entry.differences:
                yield Finding(
                    "PT022",
                    f"{entry.symbol.id}: {difference}",
                    symbol=entry.symbol.id,
                    path=where,
                    line=line,
                    expected="upstream's signature and kernel arguments",
                    found=difference,
                    fix=f"edit {where}",
                )
        if entry.is_member:
            continue
        if entry.freshness is Freshness.STALE:
            pin = overrides.pins[entry.symbol.id]
            moved = [
                what
                for what, old, new in (
                    ("body", pin.body, entry.symbol.body),
                    ("contract", pin.interface, interface_digest(entry.symbol)),
                )
                if old != new
            ]
            yield Finding(
                "PT021",
                f"{entry.symbol.id}: upstream's {' and '.join(moved)} changed since this override was written",
                symbol=entry.symbol.id,
                path=where,
                line=line,
                expected=f"body {pin.body}, contract {pin.interface} of {pin.source}",
                found=f"body {entry.symbol.body}, contract {interface_digest(entry.symbol)}",
                fix=f'porter ack {entry.symbol.id} --reason "..."',
            )
        elif entry.freshness is Freshness.UNPINNED:
            yield Finding(
                "PT023",
                f"{entry.symbol.id}: the override does not say which upstream body it was written against",
                symbol=entry.symbol.id,
                path=where,
                line=line,
                expected=f"a pin in {overrides.folder}/{PINS_NAME}",
                found="none",
                fix=f'porter ack {entry.symbol.id} --reason "..."',
            )


def _line_of(file: OverrideFile, entry: Entry) -> int | None:
    definition = _definition(file, entry.symbol.qualname.partition(".")[0])
    return definition.line if isinstance(definition, (FunctionFacts, ClassFacts)) else None


def _reachable(file: OverrideFile, roots: set[str]) -> set[str]:
    """Names of an override file that its upstream-named definitions use, however indirectly."""
    assert file.facts is not None
    graph = {d.name: d.references for d in file.facts.definitions}
    seen: set[str] = set()
    queue = [name for name in roots if name in graph]
    while queue:
        for reference in graph[queue.pop()]:
            head = reference.partition(".")[0]
            if head in graph and head not in seen:
                seen.add(head)
                queue.append(head)
    return seen


def _pin_findings(plan: Plan, overrides: Overrides) -> Iterator[Finding]:
    supplied = {entry.symbol.id for entry in plan.entries if entry.override}
    where = f"{overrides.folder}/{PINS_NAME}"
    for symbol in overrides.pins:
        if symbol in supplied:
            continue
        dropped = symbol not in plan.by_id
        yield Finding(
            "PT020" if dropped else "PT024",
            f"{symbol} is pinned but {'upstream dropped it' if dropped else 'no override supplies it'}",
            symbol=symbol,
            path=where,
            expected="a pinned override of a name that upstream has",
            found="upstream has no such name" if dropped else "no override",
            fix=f"delete the override and run `porter ack {symbol} --drop`",
        )


def counts(entries: Iterable[Entry]) -> dict[str, int]:
    """Totals of a set of entries, as ``porter status`` prints them."""
    rows = list(entries)
    return {
        "total": len(rows),
        "implemented": sum(entry.state is State.IMPLEMENTED for entry in rows),
        "excluded": sum(entry.state is State.EXCLUDED for entry in rows),
        "pending": sum(entry.state in (State.PENDING, State.UNCLASSIFIED) for entry in rows),
        "stale": sum(entry.freshness in (Freshness.STALE, Freshness.MISMATCHED, Freshness.UNPINNED) for entry in rows),
    }
