"""A package's public surface by its own rules: ``__all__``, re-exports, star imports, aliases, submodules, C++ names.

What is public: every module none of whose name's parts starts with an underscore; in it, the names of its ``__all__``, or
without one all names that do not start with an underscore (and constants such as ``__version__``). Where part of an
``__all__`` cannot be known, it is taken to hold all such names, and the part is listed as opaque. A symbol goes by the
module that defines it, be that private; it is there as soon as one public module offers it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from porter.surface import flow
from porter.surface.bodies import Bodies, binding_table
from porter.surface.constructors import constructor
from porter.surface.digest import combine
from porter.surface.model import (
    BindingFacts,
    ClassFacts,
    ConstantFacts,
    Contract,
    Export,
    Fact,
    Flow,
    FunctionFacts,
    Module,
    ModuleFacts,
    Parameter,
    ParameterKind,
    Signature,
    Surface,
    Symbol,
    SymbolKind,
)
from porter.surface.namespace import (
    Binding,
    Definition,
    ExtensionName,
    Foreign,
    ModuleReference,
    Program,
    Resolved,
    Unknown,
    package_folder,
)

type Bindings = Mapping[str, Sequence[BindingFacts]]

# Methods that Python calls by itself and whose presence says nothing of how an object is used.
_TRIVIAL = frozenset({"__repr__", "__del__", "__dir__", "__sizeof__"})
# Module attributes that a package's own code sets for Python or for tools, not for callers.
_PRIVATE_DUNDERS = frozenset(
    {"__all__", "__path__", "__doc__", "__getattr__", "__dir__", "__file__", "__spec__", "__loader__"}
)
_SUFFIXES = (".so", ".pyd", ".pyi")
_KINDS = {
    "function": SymbolKind.FUNCTION,
    "class": SymbolKind.CLASS,
    "method": SymbolKind.METHOD,
    "staticmethod": SymbolKind.STATICMETHOD,
    "classmethod": SymbolKind.CLASSMETHOD,
    "property": SymbolKind.PROPERTY,
    "attribute": SymbolKind.ATTRIBUTE,
    "constant": SymbolKind.CONSTANT,
}
_ROOT = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


def extension_modules(package: str, root: Path, facts: Mapping[str, ModuleFacts]) -> tuple[str, ...]:
    """Dotted names of the modules of ``package`` that its files import and that exist in C++ only, sorted.

    These are what ``link_package`` wants ``bindings`` for. A module is one when it is imported and there is no Python file
    of it; imported in a ``try``, only when a binary or a ``.pyi`` of it lies beside.
    """
    program = Program(package, facts, candidates=_binaries(package, root, facts))
    return tuple(sorted(name for name in program.extensions if name.rpartition(".")[0] not in program.extensions))


def link_package(
    source: str, package: str, root: Path, facts: Mapping[str, ModuleFacts], bindings: Bindings | None = None
) -> Surface:
    """The public surface of ``package``.

    Parameters:
        source: name of the source, kept in each symbol.
        root: folder that ``facts``' paths are relative to; only looked at for compiled modules.
        bindings: C++ names by dotted extension module (see ``extension_modules``).

    Raises:
        SourceError: ``facts`` hold no folder named ``package``.
    """
    given = bindings or {}
    program = Program(package, facts, extensions=given.keys(), candidates=_binaries(package, root, facts))
    return Linker(source, program, given).surface()


def _binaries(package: str, root: Path, facts: Mapping[str, ModuleFacts]) -> set[str]:
    """Modules of the package that lie in it as a binary or as a ``.pyi`` without a ``.py``."""
    base = package_folder(package, facts)
    top = root.joinpath(*base)
    found = set()
    for folder, inner, names in os.walk(top):
        inner[:] = sorted(name for name in inner if name.isidentifier())
        for name in names:
            stem = name.partition(".")[0]
            if name.endswith(_SUFFIXES) and stem.isidentifier() and stem != "__init__" and f"{stem}.py" not in names:
                found.add(".".join((package, *Path(folder).relative_to(top).parts, stem)))
    return found


def _with_receiver(signature: Signature | None, kind: SymbolKind) -> Signature | None:
    """A C++ method's signature as a class body writes it: facts of bindings leave the object itself out."""
    if signature is None or kind not in (SymbolKind.METHOD, SymbolKind.PROPERTY):
        return signature
    return Signature((Parameter("self", ParameterKind.POSITIONAL), *signature.parameters), signature.returns)


@dataclass
class _Wanted:
    """A symbol on its way: ``make`` builds it and its members; ``aliases`` are the other paths it is public under."""

    home: str
    line: int
    symbols: list[Symbol]
    aliases: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Shown:
    """A name that a module has, and what it stands for. ``kind``: ``shown``, ``reachable`` or ``foreign``."""

    name: str
    target: str
    kind: str
    is_module: bool = False


class Linker:
    """Makes symbols of what names stand for, one a definition, with all the paths that they are public under.

    ``surface`` does so for all that the package offers; ``want`` for single names, to be collected by ``symbols``.
    """

    def __init__(self, source: str, program: Program, bindings: Bindings) -> None:
        self.source = source
        self.program = program
        self.package = program.package
        self.table = binding_table(bindings)
        self.opaque: list[str] = list(program.opaque)
        for module in sorted(bindings):
            for binding in bindings[module]:
                if binding.name == "*":
                    place = f"{binding.path}:{binding.line}" if binding.path else module
                    self.opaque.append(f"{place}: {binding.opaque}")
        self.submodules = self._extension_submodules(bindings)
        self.bodies = Bodies(program, self.table)
        self.wanted: dict[str, _Wanted] = {}
        self.shown: dict[str, list[_Shown]] = {}
        self._contracts: dict[int, Contract | None] = {}
        self._queue: list[tuple[str, str]] = []

    def _extension_submodules(self, bindings: Bindings) -> set[str]:
        """Extension modules and the submodules made inside them."""
        found = set(self.program.extensions)
        for module, rows in bindings.items():
            found.update(
                ".".join(part for part in (module, row.scope, row.name) if part) for row in rows if row.kind == "module"
            )
        for path in self.table:
            owner = path.rpartition(".")[0]
            while owner and owner not in self.table and owner not in found:
                found.add(owner)
                owner = owner.rpartition(".")[0]
        return found

    # The whole

    def surface(self) -> Surface:
        self._queue = [(name, name) for name in (*self.program.modules, *sorted(self.submodules)) if _is_public(name)]
        done = set()
        for module, path in self._queue:
            # A private module that is offered under a public name joins the queue meanwhile.
            if (module, path) in done:
                continue
            done.add((module, path))
            if module in self.submodules:
                self.extension_module(module, path)
            else:
                self.module(module, path)
        self._note_constructs()
        modules = self._modules()
        symbols = self.symbols()
        sites = [site for module in self.program.modules.values() for site in module.facts.call_sites]
        return Surface(self.source, modules, symbols, tuple(sites), (), tuple(dict.fromkeys(self.opaque)))

    def symbols(self) -> tuple[Symbol, ...]:
        """Every symbol that was wanted and its members, sorted by id; notes what their contracts leave open."""
        rows = [
            replace(symbol, aliases=tuple(sorted(wanted.aliases - {symbol.id}))) if index == 0 else symbol
            for wanted in self.wanted.values()
            for index, symbol in enumerate(wanted.symbols)
        ]
        for symbol in rows:
            if symbol.contract is not None:
                self.opaque += [
                    f"{symbol.path}:{symbol.line}: {symbol.qualname}: {note}" for note in symbol.contract.opaque
                ]
        return tuple(sorted(rows, key=lambda symbol: symbol.id))

    def _note_constructs(self) -> None:
        for module in self.program.modules.values():
            for note in module.facts.opaque:
                line, _, what = note.partition(": ")
                self.opaque.append(f"{module.path}:{line}: {what}")
            exports = self.program.exports(module.name)
            if exports is not None and not exports.complete:
                self.opaque.append(
                    f"{module.path}:{module.facts.exports_line or 1}: __all__ also takes {', '.join(exports.unknown)}"
                )

    # What a module offers

    def public_names(self, module: str) -> tuple[list[str], bool]:
        """Names that the module offers, in order, and whether an ``__all__`` says so."""
        loaded = self.program.modules[module]
        exports = self.program.exports(module)
        if exports is not None:
            names = list(
                dict.fromkeys([*exports.names, *(() if exports.complete else self.program.likely_names(loaded))])
            )
            return names + [name for name in ("__version__",) if name in loaded.names and name not in names], True
        return [name for name in loaded.names if _is_public_name(name, loaded.names[name])], False

    def module(self, module: str, path: str) -> None:
        """Put all that ``module`` offers on the list, public below ``path``."""
        names, listed = self.public_names(module)
        loaded = self.program.modules[module]
        rows: list[_Shown] = []
        self.shown[module] = rows
        for name in names:
            binding = self.program.lookup(module, name)
            if binding is None and self.program.is_dynamic(loaded):
                self.want(Resolved(Unknown(module, name)), f"{path}.{name}")
                continue
            if binding is None:
                line = loaded.facts.exports_line or 1
                self.opaque.append(f"{loaded.path}:{line}: {name} is in __all__, but no statement binds it")
                continue
            if binding.origin == "submodule" and not listed:
                continue
            if not listed and self._is_leftover(module, name, binding):
                continue
            self._note_branches(module, name, binding)
            offered = listed or binding.shown or binding.origin == "define"
            row = self._row(module, name, binding, f"{path}.{name}", offered=offered, listed=listed)
            if row is not None:
                rows.append(row)

    def _is_leftover(self, module: str, name: str, binding: Binding) -> bool:
        """A name that a loop at module level leaves behind: no one means to offer it."""
        target = binding.target
        if not isinstance(target, Definition) or not isinstance(target.fact, ConstantFacts) or target.module != module:
            return False
        if not any(guard.startswith(("for ", "while ")) for guard in target.fact.guard.split(" / ")):
            return False
        self.opaque.append(
            f"{self.program.modules[module].path}:{target.fact.line}: {name} is bound in a loop and is left out"
        )
        return True

    def _note_branches(self, module: str, name: str, binding: Binding) -> None:
        facts = [
            target.fact
            for target in (binding.target, *binding.others)
            if isinstance(target, Definition) and target.module == module
        ]
        signatures = {fact.signature for fact in facts if isinstance(fact, FunctionFacts)}
        if binding.origin == "define" and len(signatures) > 1:
            path = self.program.modules[module].path
            self.opaque.append(
                f"{path}:{binding.line}: {name} is defined in several branches; the one on this line is taken"
            )

    def _row(
        self, module: str, name: str, binding: Binding, path: str, *, offered: bool, listed: bool
    ) -> _Shown | None:
        found = self.program.final(binding.target)
        target = found.target
        if isinstance(target, Unknown) and target.missing:
            return None
        if isinstance(target, Definition) and target.module == module and target.fact.name == name and not found.rest:
            self.want(Resolved(target), path)
            return None
        if (
            isinstance(binding.target, Definition)
            and binding.target.module == module
            and (found.rest or isinstance(target, (Foreign, Unknown)))
        ):
            # An alias into something (``a = Class.method``) is a definition of its own.
            self.want(Resolved(binding.target), path)
            return None
        if isinstance(target, Foreign):
            plain = binding.origin == "star" or (binding.origin == "import" and target.path == name)
            return _Shown(name, target.path, "foreign") if offered and (listed or not plain) else None
        inner = None
        if isinstance(target, ModuleReference):
            inner = target.module
        elif isinstance(target, ExtensionName) and f"{target.module}.{target.name}" in self.submodules:
            inner = f"{target.module}.{target.name}"
        if inner is not None:
            if offered and not _is_public(inner):
                self._queue.append((inner, path))
            return _Shown(name, inner, "shown" if offered else "reachable", is_module=True)
        if not offered and not isinstance(target, ExtensionName):
            return _Shown(name, self.identity(found), "reachable")
        # What C++ binds in a private module has no other way to callers than the module that imports it.
        identity = self.want(found, path)
        return _Shown(name, identity, "shown") if identity is not None else None

    def extension_module(self, module: str, path: str) -> None:
        """A C++ module that is public, below ``path``, offers all that is bound in it and all that is used of it."""
        prefix = module + "."
        names = {full[len(prefix) :] for full in self.table if full.startswith(prefix)}
        used = {f"{one.module}.{one.name}" for one in self.bodies.extension_names}
        names |= {full[len(prefix) :].partition(".")[0] for full in used if full.startswith(prefix)}
        for name in sorted(names):
            full = prefix + name
            known = "." not in name and full not in self.submodules
            if known and not name.startswith("_"):
                self.want(Resolved(ExtensionName(module, name)), f"{path}.{name}")
        for inner in sorted(self.submodules):
            if (
                inner.startswith(prefix)
                and "." not in inner[len(prefix) :]
                and not inner[len(prefix) :].startswith("_")
            ):
                self._queue.append((inner, f"{path}.{inner[len(prefix) :]}"))

    # Identity

    def identity(self, found: Resolved) -> str:
        """The one id of what a name stands for."""
        target = found.target
        match target:
            case Definition():
                return ".".join([target.module, target.fact.name, *found.rest])
            case ExtensionName():
                return self.extension_identity(target)
            case Unknown():
                return f"{target.module}.{target.name}"
            case _:
                return ""

    def extension_identity(self, name: ExtensionName) -> str:
        """``package.name`` for a name that the package itself shows, or of a private extension module.

        Where the package shows something else under that name, and for a public extension module whose names the package
        does not show, it is the name's own path.
        """
        full = f"{name.module}.{name.name}"
        extension = name.module
        while extension.rpartition(".")[0] in self.submodules:
            extension = extension.rpartition(".")[0]
        inside = full[len(extension) + 1 :]
        head = inside.partition(".")[0]
        binding = self.program.lookup(self.package, head)
        if binding is None:
            return full if _is_public(extension) else f"{self.package}.{inside}"
        shown = self.program.final(binding.target).target
        if isinstance(shown, ExtensionName):
            shown_path = f"{shown.module}.{shown.name}"
        else:
            shown_path = shown.module if isinstance(shown, ModuleReference) and shown.extension else ""
        return f"{self.package}.{inside}" if shown_path == f"{extension}.{head}" else full

    # Symbols

    def want(self, found: Resolved, path: str) -> str | None:
        """Put a symbol and its members on the list, public under ``path``; its id, None where there is nothing to show."""
        if isinstance(found.target, ExtensionName):
            found = Resolved(self._real(found.target), found.rest)
        identity = self.identity(found)
        if not identity:
            return None
        entry = self.wanted.get(identity)
        if entry is None:
            entry = self._entry(identity, found)
            self.wanted[identity] = entry
        entry.aliases.add(path)
        return identity

    def _real(self, name: ExtensionName) -> ExtensionName:
        """A C++ name behind its ``m.attr`` aliases."""
        for _ in range(20):
            binding = self.table.get(f"{name.module}.{name.name}")
            if binding is None or not binding.alias_of or f"{name.module}.{binding.alias_of}" not in self.table:
                return name  # alias_of is a path inside the extension module
            name = ExtensionName(name.module, binding.alias_of)
        return name

    def _entry(self, identity: str, found: Resolved) -> _Wanted:
        target = found.target
        match target:
            case Definition():
                return _Wanted(
                    target.module,
                    target.fact.line,
                    list(self._definition(target.module, target.fact, identity, target.fact.name)),
                )
            case ExtensionName():
                binding = self.table.get(f"{target.module}.{target.name}")
                return _Wanted(
                    self._top(target)[0], binding.line if binding else 0, list(self._bound(identity, target, binding))
                )
            case Unknown():
                module = self.program.modules.get(target.module)
                symbol = Symbol(
                    identity,
                    self.source,
                    SymbolKind.CONSTANT,
                    target.module,
                    target.name,
                    module.path if module is not None else "",
                    opaque=f"no statement of {target.module} binds it",
                )
                return _Wanted(target.module, 0, [symbol])
            case _:
                raise AssertionError(found)

    def _definition(self, module: str, fact: Fact, identity: str, qualname: str) -> Iterator[Symbol]:
        match fact:
            case FunctionFacts():
                yield self._function(
                    module, fact, identity, qualname, SymbolKind.FACTORY if fact.factory else SymbolKind.FUNCTION
                )
            case ClassFacts():
                yield self._class(module, fact, identity, qualname)
                yield from self._members(module, fact, identity, qualname)
            case ConstantFacts():
                yield self._constant(module, fact, identity, qualname)

    def _symbol(self, module: str, fact: Fact, identity: str, qualname: str, kind: SymbolKind) -> Symbol:
        return Symbol(
            identity,
            self.source,
            kind,
            module,
            qualname,
            self.program.modules[module].path,
            fact.line,
            own=self.bodies.own(fact),
            body=self.bodies.body(fact),
            sketch="" if isinstance(fact, ConstantFacts) else fact.sketch,
        )

    def _function(self, module: str, fact: FunctionFacts, identity: str, qualname: str, kind: SymbolKind) -> Symbol:
        return replace(
            self._symbol(module, fact, identity, qualname, kind),
            signature=fact.signature,
            contract=self.contract(module, fact),
            decorators=fact.decorators,
            docs=fact.docs,
            is_async=fact.is_async,
        )

    def contract(self, module: str, fact: FunctionFacts) -> Contract | None:
        """The function's tensor contract with its writes followed through the package."""
        if fact.contract is None:
            return None
        if id(fact) not in self._contracts:
            self._contracts[id(fact)] = flow.resolve(fact.contract, module=module, lookup=self._flow)
        return self._contracts[id(fact)]

    def _flow(self, module: str, dotted: str) -> tuple[str, Flow] | None:
        """Defining module and flow of a function named in ``module``, or by its dotted target."""
        if module not in self.program.modules:
            return None
        found = self.program.resolve(module, dotted, history=True)
        if found is None:
            found = self.program.resolve(module, dotted.split(".")[-1], {dotted.split(".")[-1]: dotted})
        if found is None or not isinstance(found.target, Definition):
            return None
        fact: Fact | None = found.target.fact
        for name in found.rest:
            fact = (
                next((one for one in reversed(fact.methods) if one.name == name), None)
                if isinstance(fact, ClassFacts)
                else None
            )
        return (found.target.module, fact.flow) if isinstance(fact, FunctionFacts) and fact.flow is not None else None

    def _class(self, module: str, fact: ClassFacts, identity: str, qualname: str) -> Symbol:
        return replace(
            self._symbol(module, fact, identity, qualname, SymbolKind.CLASS),
            signature=constructor(self.program, module, fact),
            bases=fact.bases,
            decorators=fact.decorators,
        )

    def _members(self, module: str, owner: ClassFacts, identity: str, qualname: str) -> Iterator[Symbol]:
        rows: dict[str, tuple[Fact, SymbolKind]] = {}
        for method in owner.methods:
            if not _is_public_member(method.name) or "TYPE_CHECKING" in method.guard.split(" / "):
                continue
            names = [decorator.name for decorator in method.decorators]
            kind = _method_kind(names)
            if any(name.endswith((".setter", ".deleter", ".getter")) for name in names):
                # Part of a property that is defined above.
                continue
            rows.pop(method.name, None)
            rows[method.name] = (method, kind)
        for attribute in owner.attributes:
            if not attribute.name.startswith("_") and "TYPE_CHECKING" not in attribute.guard.split(" / "):
                rows[attribute.name] = (attribute, SymbolKind.ATTRIBUTE)
        for inner in owner.classes:
            if not inner.name.startswith("_"):
                rows[inner.name] = (inner, SymbolKind.CLASS)
        for name, (fact, kind) in sorted(rows.items(), key=lambda row: row[1][0].line):
            inside, path = f"{identity}.{name}", f"{qualname}.{name}"
            match fact:
                case FunctionFacts():
                    yield self._function(module, fact, inside, path, kind)
                case ClassFacts():
                    yield self._class(module, fact, inside, path)
                    yield from self._members(module, fact, inside, path)
                case ConstantFacts():
                    symbol = self._symbol(module, fact, inside, path, kind)
                    yield replace(symbol, value=fact.value or None, annotation=fact.annotation)

    def _constant(self, module: str, fact: ConstantFacts, identity: str, qualname: str) -> Symbol:
        symbol = self._symbol(module, fact, identity, qualname, SymbolKind.CONSTANT)
        found = (
            self.program.resolve(module, fact.value, history=True)
            if fact.value.replace(".", "").isidentifier()
            else None
        )
        applied = self._autograd(found)
        if applied is not None:
            return replace(symbol, kind=SymbolKind.FUNCTION, signature=applied, value=fact.value)
        if (
            found is not None
            and found.rest
            and isinstance(found.target, Definition)
            and isinstance(found.target.fact, ClassFacts)
        ):
            member: Fact | None = found.target.fact
            for name in found.rest:
                member = (
                    next((one for one in reversed(member.methods) if one.name == name), None)
                    if isinstance(member, ClassFacts)
                    else None
                )
            if isinstance(member, FunctionFacts):
                bound = _method_kind([decorator.name for decorator in member.decorators]) is SymbolKind.CLASSMETHOD
                signature = Signature(
                    member.signature.parameters[1:] if bound else member.signature.parameters, member.signature.returns
                )
                return replace(symbol, kind=SymbolKind.FUNCTION, signature=signature, value=fact.value, decorators=())
        guards = fact.guard.split(" / ")
        opaque = ""
        if any(guard.startswith(("for ", "while ")) for guard in guards):
            opaque = "bound in a loop"
        elif "with" in guards:
            opaque = "bound by a with statement"
        return replace(symbol, value=fact.value or None, annotation=fact.annotation, opaque=opaque)

    def _autograd(self, found: Resolved | None) -> Signature | None:
        """Signature of ``F.apply`` of a torch.autograd.Function: its ``forward`` without the context, by position."""
        if found is None or found.rest != ("apply",) or not isinstance(found.target, Definition):
            return None
        owner = found.target.fact
        if not isinstance(owner, ClassFacts) or not any(
            base.text.endswith("autograd.Function") for base in owner.bases
        ):
            return None
        forward = next((method for method in reversed(owner.methods) if method.name == "forward"), None)
        if forward is None:
            return None
        rows = forward.signature.parameters[1:]
        kinds = {ParameterKind.POSITIONAL: ParameterKind.POSITIONAL_ONLY}
        return Signature(
            tuple(replace(row, kind=kinds.get(row.kind, row.kind)) for row in rows), forward.signature.returns
        )

    def _bound(self, identity: str, target: ExtensionName, binding: BindingFacts | None) -> Iterator[Symbol]:
        top = self._top(target)
        if binding is None:
            opaque = "no C++ source and no .pyi says what it is"
            yield Symbol(identity, self.source, SymbolKind.FUNCTION, top[0], top[1], "", opaque=opaque)
            return
        body = combine_binding(binding, self._rows_below(target))
        symbol = self._binding_symbol(identity, top[0], top[1], binding, body)
        if symbol.kind is SymbolKind.CLASS and symbol.signature is None:
            made = [
                row
                for row in self._rows_below(target)
                if row.name == "__init__" and row.scope.rpartition(".")[2] == binding.name
            ]
            symbol = replace(symbol, signature=made[0].signature if made else None)
        yield symbol
        for row in self._rows_below(target):
            inside = ".".join(part for part in (row.scope, row.name) if part)
            rest = inside[len(".".join(part for part in (binding.scope, binding.name) if part)) + 1 :]
            if all(_is_public_member(part) for part in rest.split(".")):
                yield self._binding_symbol(f"{identity}.{rest}", top[0], f"{top[1]}.{rest}", row, row.digest)

    def _top(self, target: ExtensionName) -> tuple[str, str]:
        """Module and qualified name of a C++ name: what lies in a C++ submodule belongs to that submodule."""
        full = f"{target.module}.{target.name}"
        owner = full.rpartition(".")[0]
        while owner not in self.submodules and owner.rpartition(".")[0]:
            owner = owner.rpartition(".")[0]
        return owner, full[len(owner) + 1 :]

    def _rows_below(self, target: ExtensionName) -> list[BindingFacts]:
        prefix = f"{target.module}.{target.name}."
        return [binding for path, binding in self.table.items() if path.startswith(prefix)]

    def _binding_symbol(self, identity: str, module: str, qualname: str, binding: BindingFacts, body: str) -> Symbol:
        kind = _KINDS.get(binding.kind, SymbolKind.CONSTANT)
        if kind is SymbolKind.CONSTANT and "." in qualname:
            kind = SymbolKind.ATTRIBUTE
        return Symbol(
            identity,
            self.source,
            kind,
            module,
            qualname,
            binding.path,
            binding.line,
            signature=_with_receiver(binding.signature, kind),
            value=binding.value,
            docs=binding.docs,
            own=binding.digest,
            body=body,
            opaque=binding.opaque,
        )

    # Modules

    def _modules(self) -> tuple[Module, ...]:
        homes: dict[str, list[tuple[int, str]]] = {}
        for identity, entry in self.wanted.items():
            homes.setdefault(entry.home, []).append((entry.line, identity))
        names = {name for name in (*self.program.modules, *self.submodules) if _is_public(name)} | set(homes)
        for name in [*names]:
            while name := name.rpartition(".")[0]:
                names.add(name)
        return tuple(self._module(name, homes.get(name, [])) for name in sorted(names))

    def _module(self, name: str, home: list[tuple[int, str]]) -> Module:
        loaded = self.program.modules.get(name)
        rows = self.shown.get(name, ())
        symbols = tuple(identity for _, identity in sorted(home))
        known = self.wanted.keys()

        def exports(kind: str) -> tuple[Export, ...]:
            return tuple(Export(row.name, row.target, row.is_module) for row in rows if row.kind == kind)

        reachable = tuple(export for export in exports("reachable") if export.is_module or export.target in known)
        if loaded is None:
            packages = {other.rpartition(".")[0] for other in (*self.program.modules, *self.submodules)}
            path = next((binding.path for key, binding in self.table.items() if key.startswith(name + ".")), "")
            aliases = self._extension_aliases(name)
            return Module(name, path, name in packages, symbols, aliases, extension=name in self.submodules)
        listed = self.program.exports(name)
        return Module(
            name,
            loaded.path,
            loaded.is_package,
            symbols,
            exports("shown"),
            tuple(dict.fromkeys(listed.names)) if listed is not None else None,
            names=self.names(name, symbols),
            reachable=reachable,
            foreign=exports("foreign"),
        )

    def _extension_aliases(self, module: str) -> tuple[Export, ...]:
        """Names of an extension module that C++ sets to another of its names (``m.attr("a") = m.attr("b")``)."""
        rows = []
        for path, binding in self.table.items():
            if binding.alias_of and path.rpartition(".")[0] == module:
                real = self._real(ExtensionName(module, binding.name))
                identity = self.extension_identity(real)
                if identity in self.wanted and real.name != binding.name:
                    rows.append(Export(binding.name, identity))
        return tuple(rows)

    def names(self, module: str, symbols: Iterable[str]) -> tuple[tuple[str, str], ...]:
        """What the root names in the symbols' texts stand for, as far as an import binds them."""
        loaded = self.program.modules[module]
        roots: set[str] = set()
        for identity in symbols:
            for symbol in self.wanted[identity].symbols:
                for text in _texts(symbol):
                    roots.update(_ROOT.findall(text))
        rows = []
        for root in sorted(roots):
            binding = loaded.history.get(root)
            if binding is None or binding.origin not in ("import", "star"):
                typed = next(
                    (
                        fact
                        for fact in reversed(loaded.facts.imports)
                        if fact.bound == root and "TYPE_CHECKING" in fact.guard
                    ),
                    None,
                )
                if binding is None and typed is not None:
                    path = self.program.absolute(module, typed.module)
                    if path is not None:
                        rows.append((root, f"{path}.{typed.name}" if typed.name else path))
                continue
            target = self.program.follow(binding.target)
            match target:
                case Foreign():
                    rows.append((root, target.path))
                case Definition():
                    rows.append((root, f"{target.module}.{target.fact.name}"))
                case ModuleReference():
                    rows.append((root, target.module))
                case ExtensionName() | Unknown():
                    rows.append((root, f"{target.module}.{target.name}"))
                case _:
                    continue
        return tuple(rows)


def combine_binding(binding: BindingFacts, rows: Iterable[BindingFacts]) -> str:
    """Body digest of a C++ name: its definition and, for a class, all that is bound in it."""
    below = list(rows)
    return (
        combine([binding.digest, *(f"{row.scope}.{row.name} {row.digest}" for row in below)])
        if below
        else binding.digest
    )


def _is_public(module: str) -> bool:
    return not any(part.startswith("_") for part in module.split("."))


def _is_public_name(name: str, binding: Binding) -> bool:
    if not name.startswith("_"):
        return True
    dunder = name.startswith("__") and name.endswith("__") and name not in _PRIVATE_DUNDERS
    return dunder and not (isinstance(binding.target, Foreign) and binding.origin == "import")


def _is_public_member(name: str) -> bool:
    if not name.startswith("_"):
        return True
    return name.startswith("__") and name.endswith("__") and name not in _TRIVIAL


def _method_kind(decorators: Iterable[str]) -> SymbolKind:
    for name in decorators:
        last = name.rpartition(".")[2]
        if last == "staticmethod":
            return SymbolKind.STATICMETHOD
        if last == "classmethod":
            return SymbolKind.CLASSMETHOD
        if last in ("property", "cached_property", "abstractproperty"):
            return SymbolKind.PROPERTY
    return SymbolKind.METHOD


def _texts(symbol: Symbol) -> Iterator[str]:
    if symbol.signature is not None:
        for parameter in symbol.signature.parameters:
            yield from (text for text in (parameter.annotation, parameter.default) if text)
        if symbol.signature.returns:
            yield symbol.signature.returns
    yield from (text for text in (symbol.value, symbol.annotation) if text)
    for base in symbol.bases:
        yield base.text
    for decorator in symbol.decorators:
        yield decorator.name
