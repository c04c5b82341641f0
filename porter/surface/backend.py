"""DeepInfer's kernel backends: the factories that ``tilelang_ops/ops.py`` re-exports, their call sites and references.

``ops.py`` imports every module of the chosen backend's package and takes each name that ends in ``_tl``, does not start
with an underscore and is no module, defined there or imported. The same is done here by name, without importing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from porter.config import VENDOR_PACKAGES
from porter.errors import SourceError
from porter.surface.link import Linker
from porter.surface.model import (
    CallSite,
    ClassFacts,
    Export,
    FunctionFacts,
    ImportFacts,
    Module,
    ModuleFacts,
    Surface,
    Symbol,
)
from porter.surface.namespace import Definition, Foreign, LoadedModule, ModuleReference, Program, Resolved

PACKAGE = "deepinfer"
# Left out of the names that a backend's symbols go by.
LAYERS = f"{PACKAGE}.model_executor.layers."
OPERATORS = f"{LAYERS}tilelang_ops"
SUFFIX = "_tl"
REFERENCE_SUFFIX = "_ref"

type Backend = Literal["asc", "cuda"]


@dataclass(frozen=True)
class EngineUse:
    """One place where the engine names something of a vendor package: ``deep_gemm.fp8_einsum`` at ``path:line``.

    ``line`` is that of the import or, for an attribute used through an imported module, of the function or statement that
    uses it.
    """

    name: str
    path: str
    line: int


def link_backend(root: Path, facts: Mapping[str, ModuleFacts], backend: Backend) -> Surface:
    """The factories of one backend, as surface ``tilelang_ops.<backend>``.

    Symbols go by the module that defines them, without the engine's own prefix: ``tilelang_ops.asc.norm.norm_tl``. The
    modules are all of the backend's, also those without a factory. ``call_sites`` are those in the interface modules,
    ``caller`` being qualified by its module: ``tilelang_ops.norm.norm``.

    Raises:
        SourceError: ``facts`` hold no such backend, or two of its objects go by one name.
    """
    del root  # the facts say it all; taken to be called as link_package is
    program = Program(PACKAGE, facts)
    package = f"{OPERATORS}.{backend}"
    inside = [module for module in _below(program, package) if module.name != package]
    if not inside:
        raise SourceError(
            f"holds no kernel backend {backend!r}", path=package.replace(".", "/"), fix="check the source of deepinfer"
        )
    linker = Linker(f"tilelang_ops.{backend}", program, {})
    taken: dict[str, tuple[Resolved, str]] = {}
    exports: dict[str, list[Export]] = {}
    for module in inside:
        for name, found in _factories(program, module):
            line = module.names[name].line
            first, place = taken.setdefault(name, (found, f"{module.path}:{line}"))
            if first != found:
                raise SourceError(
                    f"{name} is another object than {name} at {place}; a backend has one object a name",
                    path=module.path,
                    line=line,
                    fix="rename one of the two upstream",
                )
            identity = linker.want(found, f"{module.name}.{name}")
            if identity is not None and identity != f"{module.name}.{name}":
                exports.setdefault(module.name, []).append(Export(name, _short(identity)))
    return _surface(
        linker, [program.modules[package], *inside] if package in program.modules else inside, exports, set(taken)
    )


def link_references(root: Path, facts: Mapping[str, ModuleFacts]) -> Surface:
    """The ``*_ref`` functions that stand in the interface modules, as surface ``tilelang_ops``.

    Symbols are functions such as ``tilelang_ops.norm.norm_ref``.
    """
    del root
    program = Program(PACKAGE, facts)
    linker = Linker("tilelang_ops", program, {})
    modules = _interfaces(program)
    for module in modules:
        for name, binding in module.names.items():
            target = binding.target
            if (
                not name.endswith(REFERENCE_SUFFIX)
                or not isinstance(target, Definition)
                or target.module != module.name
            ):
                continue
            if isinstance(target.fact, FunctionFacts):
                linker.want(Resolved(target), f"{module.name}.{name}")
    return _surface(linker, modules, {}, set())


def engine_uses(root: Path, facts: Mapping[str, ModuleFacts]) -> tuple[EngineUse, ...]:
    """Every place where the engine imports or uses a name of a vendor package, sorted by name and place.

    The kernel backends do not count: another one takes their place. Nor do tests that stand among the engine's modules
    (functions named ``test_*`` and ``conftest.py``).
    """
    del root
    program = Program(PACKAGE, facts)
    found: dict[EngineUse, None] = {}
    for module in program.modules.values():
        backend = module.name.startswith(OPERATORS + ".") and (
            module.is_package or module.name.count(".") > OPERATORS.count(".") + 1
        )
        if not backend and module.name.rpartition(".")[2] != "conftest":
            for use in _uses(program, module):
                found[use] = None
    return tuple(sorted(found, key=lambda use: (use.name, use.path, use.line)))


def engine_imports(root: Path, facts: Mapping[str, ModuleFacts]) -> tuple[str, ...]:
    """Dotted names of the vendor packages that the engine imports or uses, sorted: ``deep_gemm.fp8_einsum``.

    A name that is only the way to another one that is used (``tile_kernels.quant`` to ``tile_kernels.quant.cast``) is
    there too when something imports it.
    """
    return tuple(sorted({use.name for use in engine_uses(root, facts)}))


# -- backends --------------------------------------------------------------------------------------------------------


def _below(program: Program, package: str) -> list[LoadedModule]:
    """The package and the modules directly in it, sorted by name."""
    return sorted(
        (
            module
            for module in program.modules.values()
            if module.name == package or module.name.rpartition(".")[0] == package
        ),
        key=lambda module: module.name,
    )


def _interfaces(program: Program) -> list[LoadedModule]:
    return [
        module
        for module in _below(program, OPERATORS)
        if not module.is_package and not module.name.endswith(".conftest")
    ]


def _factories(program: Program, module: LoadedModule) -> Iterator[tuple[str, Resolved]]:
    """Names of a backend's module that ``ops.py`` would take, and what they stand for."""
    for name, binding in module.names.items():
        if name.startswith("_") or not name.endswith(SUFFIX):
            continue
        found = program.final(binding.target)
        if not isinstance(found.target, ModuleReference):
            yield name, found


def _surface(
    linker: Linker, modules: Iterable[LoadedModule], exports: Mapping[str, list[Export]], factories: set[str]
) -> Surface:
    shown = [_short_symbol(symbol) for symbol in linker.symbols()]
    notes = list(linker.opaque)
    rows = []
    for module in modules:
        notes += [f"{module.path}:{note}" for note in module.facts.opaque]
        # Members go with their class.
        home = [identity for identity, entry in linker.wanted.items() if entry.home == module.name]
        home.sort(key=lambda identity: (linker.wanted[identity].line, identity))
        rows.append(
            Module(
                _short(module.name),
                module.path,
                module.is_package,
                tuple(_short(identity) for identity in home),
                tuple(exports.get(module.name, ())),
                names=linker.names(module.name, home),
            )
        )
    sites = tuple(_call_sites(linker.program, factories)) if factories else ()
    return Surface(linker.source, tuple(rows), tuple(shown), sites, (), tuple(dict.fromkeys(notes)))


def _call_sites(program: Program, factories: set[str]) -> Iterator[CallSite]:
    for module in _interfaces(program):
        for site in module.facts.call_sites:
            if site.factory.rpartition(".")[2] in factories:
                name = _short(module.name)
                yield replace(site, caller=f"{name}.{site.caller}" if site.caller else name)


def _short(name: str) -> str:
    return name.removeprefix(LAYERS)


def _short_symbol(symbol: Symbol) -> Symbol:
    return replace(
        symbol,
        id=_short(symbol.id),
        module=_short(symbol.module),
        aliases=tuple(_short(alias) for alias in symbol.aliases),
    )


# -- the engine ------------------------------------------------------------------------------------------------------


def _vendor(path: str) -> bool:
    return path.partition(".")[0] in VENDOR_PACKAGES


def _uses(program: Program, module: LoadedModule) -> Iterator[EngineUse]:
    facts = module.facts
    for fact in facts.imports:
        yield from _import_use(program, module, fact)
    for function in facts.functions:
        if not function.name.startswith("test_"):
            yield from _function_uses(program, module, function)
    for owner in facts.classes:
        yield from _class_uses(program, module, owner)
    for constant in facts.constants:
        yield from _names(program, module, constant.references, constant.line)
    yield from _names(program, module, facts.references, 1)


def _import_use(program: Program, module: LoadedModule, fact: ImportFacts) -> Iterator[EngineUse]:
    target = program.absolute(module.name, fact.module)
    if target is not None and _vendor(target):
        yield EngineUse(f"{target}.{fact.name}" if fact.name else target, module.path, fact.line)


def _class_uses(program: Program, module: LoadedModule, owner: ClassFacts) -> Iterator[EngineUse]:
    yield from _names(program, module, owner.references, owner.line)
    for method in owner.methods:
        if not method.name.startswith("test_"):
            yield from _function_uses(program, module, method)
    for inner in owner.classes:
        yield from _class_uses(program, module, inner)


def _function_uses(program: Program, module: LoadedModule, function: FunctionFacts) -> Iterator[EngineUse]:
    local = dict(function.local_imports)
    for written in local.values():
        target = program.absolute(module.name, written)
        if target is not None and _vendor(target):
            yield EngineUse(target, module.path, function.line)
    yield from _names(program, module, function.references, function.line, local)


def _names(
    program: Program, module: LoadedModule, names: Iterable[str], line: int, local: Mapping[str, str] | None = None
) -> Iterator[EngineUse]:
    for name in names:
        found = program.resolve(module.name, name, local, history=True)
        for target in () if found is None else (found.target, *found.others):
            if isinstance(target, Foreign) and _vendor(target.path):
                yield EngineUse(target.path, module.path, line)
