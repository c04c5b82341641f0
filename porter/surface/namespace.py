"""Names of a package's modules, bound as importing the package would bind them, without importing anything.

``Program`` replays the statements of each module in order: imports run the imported module first, a star import copies
what is bound by then, a later statement rebinds. A fallback binds only what is still unbound: the ``except`` of a ``try``,
the ``else`` of an ``if`` (of an ``if not``, its first branch). A ``TYPE_CHECKING`` branch binds nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from porter.errors import SourceError
from porter.surface.evaluate import NameList, evaluate_names
from porter.surface.model import ConstantFacts, Fact, ImportFacts, ModuleFacts


@dataclass(frozen=True)
class Definition:
    """A name that a statement of ``module`` defines."""

    module: str
    fact: Fact


@dataclass(frozen=True)
class ModuleReference:
    """A module of the package: a Python file, or (``extension``) one that exists in C++ only."""

    module: str
    extension: bool = False


@dataclass(frozen=True)
class ExtensionName:
    """A name inside an extension module; ``name`` is dotted for a member of a class."""

    module: str
    name: str


@dataclass(frozen=True)
class Foreign:
    """Something of another package, by dotted path."""

    path: str


@dataclass(frozen=True)
class Lazy:
    """A name of a module that was not bound yet when it was imported (an import cycle)."""

    module: str
    name: str


@dataclass(frozen=True)
class AllOf:
    """The ``__all__`` of a module, imported as a value."""

    module: str


@dataclass(frozen=True)
class Unknown:
    """A name that no statement of ``module`` binds; ``missing``: the module itself has no source."""

    module: str
    name: str
    missing: bool = False


type Target = Definition | ModuleReference | ExtensionName | Foreign | Lazy | AllOf | Unknown


@dataclass(frozen=True)
class Binding:
    """One name of one module.

    ``origin``: ``define``, ``import``, ``star``, ``submodule`` (the import of a submodule set it).
    ``shown``: an import in the form that offers the name on (in an ``__init__``, or ``import x as x``).
    ``others``: what the name would be bound to in branches that are not followed.
    """

    target: Target
    origin: str
    line: int = 0
    guard: str = ""
    shown: bool = False
    others: tuple[Target, ...] = ()


@dataclass
class LoadedModule:
    """A module and the names it has bound so far. ``history`` keeps names that were deleted again."""

    name: str
    path: str
    is_package: bool
    facts: ModuleFacts
    names: dict[str, Binding] = dataclasses.field(default_factory=dict)
    history: dict[str, Binding] = dataclasses.field(default_factory=dict)
    state: str = "new"


@dataclass(frozen=True)
class Resolved:
    """What a dotted name stands for: ``target``, and the attributes left over that are not followed into it.

    ``others``: targets in branches that are not followed.
    """

    target: Target
    rest: tuple[str, ...] = ()
    others: tuple[Target, ...] = ()


class Program:
    """All modules of one package, loaded.

    Parameters:
        package: name of the package.
        facts: facts by path relative to the source's root.
        extensions: dotted names of modules that exist in C++ only.
        candidates: dotted names that are such modules if anything imports them. An imported module of the package that
            has no file and is none of these counts as one too, unless it is imported in a ``try``.
    """

    def __init__(
        self,
        package: str,
        facts: Mapping[str, ModuleFacts],
        *,
        extensions: Collection[str] = (),
        candidates: Collection[str] = (),
    ) -> None:
        self.package = package
        self.extensions = set(extensions)
        self.missing: set[str] = set()
        self._candidates = frozenset(candidates)
        self.opaque: list[str] = []
        self.modules = {module.name: module for module in _modules(package, facts)}
        self._names: dict[str, NameList | None] = {}
        self._evaluating: set[str] = set()
        self._resolved: dict[tuple[str, str, bool], Resolved | None] = {}
        self._resolving: set[tuple[str, str, bool]] = set()
        self._loaded = False
        for name in sorted(self.modules):
            self._load(name)
        for module in self.modules.values():
            for name in module.facts.deleted:
                if name in module.names:
                    module.history[name] = module.names.pop(name)
        self._loaded = True
        for module in self.modules.values():
            for binding in [*module.names.values()]:
                for target in (binding.target, *binding.others):
                    self.follow(target)  # finds the extension modules that a late import names

    # Loading

    def _note(self, module: LoadedModule, line: int, what: str) -> None:
        self.opaque.append(f"{module.path}:{line}: {what}")

    def _load(self, name: str) -> None:
        module = self.modules.get(name)
        if module is None or module.state != "new":
            return
        parent, _, last = name.rpartition(".")
        if parent:
            self._load(parent)
            if module.state != "new":
                return
        module.state = "loading"
        for event in _events(module.facts):
            if "TYPE_CHECKING" in _guards(event.guard):
                continue
            if isinstance(event, ImportFacts):
                self._import(module, event)
            else:
                self._bind(module, event.name, Binding(Definition(name, event), "define", event.line, event.guard))
        module.state = "done"
        owner = self.modules.get(parent)
        if owner is not None and owner.state == "loading":
            # Importing a submodule sets it on its package, over whatever had the name.
            self._bind(owner, last, Binding(ModuleReference(name), "submodule"))

    def _bind(self, module: LoadedModule, name: str, binding: Binding) -> None:
        before = module.names.get(name)
        if before is not None:
            guards = _guards(binding.guard)
            fallback = "except" in guards or _is_fallback(binding.guard, before.guard)
            # Another package's version of a name that is defined here already, if that package is there.
            fallback = fallback or (
                "try" in guards and isinstance(binding.target, Foreign) and isinstance(before.target, Definition)
            )
            if fallback and not self._is_missing(before.target):
                module.names[name] = dataclasses.replace(before, others=(*before.others, binding.target))
                module.history[name] = module.names[name]
                return
            if any(guard.startswith(("if ", "else ", "for ", "while ")) for guard in guards):
                binding = dataclasses.replace(binding, others=(*binding.others, before.target, *before.others))
        module.names[name] = binding
        module.history[name] = binding

    def _is_missing(self, target: Target) -> bool:
        if isinstance(target, ModuleReference):
            return target.extension and target.module in self.missing
        return isinstance(target, Unknown) and target.missing

    def absolute(self, module: str, written: str) -> str | None:
        """Dotted name that an import in ``module`` means by ``written`` (leading dots kept), None beyond the top."""
        if not written.startswith("."):
            return written
        rest = written.lstrip(".")
        parts = module.split(".")
        known = self.modules.get(module)
        up = len(written) - len(rest) - (1 if known is not None and known.is_package else 0)
        if up > len(parts):
            return None
        base = parts[: len(parts) - up]
        return ".".join([*base, rest] if rest else base) or None

    def is_internal(self, dotted: str) -> bool:
        """True for the package itself and all below it."""
        return dotted == self.package or dotted.startswith(self.package + ".")

    def _import(self, module: LoadedModule, event: ImportFacts) -> None:
        target = self.absolute(module.name, event.module)
        if target is None:
            self._note(module, event.line, f"`{event.module}` reaches above the top package")
            return
        if not self.is_internal(target):
            self._import_foreign(module, event, target)
            return
        self._load(target)
        if event.name == "*":
            self._star(module, event, target)
        elif event.name == "":
            dotted_import = "." in event.module and event.bound == event.module.partition(".")[0]
            reference = self._module(target, event, module)
            if dotted_import:
                reference = ModuleReference(self.package)
            if reference is not None:
                self._bind(module, event.bound, self._imported(module, event, reference))
        else:
            found = self._attribute(target, event, module)
            self._bind(module, event.bound, self._imported(module, event, *found))

    def _imported(
        self, module: LoadedModule, event: ImportFacts, target: Target, others: tuple[Target, ...] = ()
    ) -> Binding:
        shown = (module.is_package and event.module != "__future__") or event.explicit
        return Binding(target, "import", event.line, event.guard, shown, others)

    def _module(self, dotted: str, event: ImportFacts, importer: LoadedModule) -> Target | None:
        """The module ``dotted`` of this package as a target; decides what one without a file is."""
        if dotted in self.modules:
            return ModuleReference(dotted)
        if dotted not in self.extensions and dotted not in self.missing:
            if "try" in _guards(event.guard) and dotted not in self._candidates:
                self.missing.add(dotted)
                self._note(importer, event.line, f"{dotted} is imported but is in no file; its names are left out")
            else:
                self.extensions.add(dotted)
        if dotted in self.missing:
            return Unknown(dotted, "", missing=True)
        return ModuleReference(dotted, extension=True)

    def _attribute(self, target: str, event: ImportFacts, importer: LoadedModule) -> tuple[Target, tuple[Target, ...]]:
        """What ``from target import name`` gives."""
        name = event.name
        if name == "__all__":
            return AllOf(target), ()
        source = self.modules.get(target)
        if source is None:
            reference = self._module(target, event, importer)
            if isinstance(reference, ModuleReference):
                return ExtensionName(target, name), ()
            return Unknown(target, name, missing=True), ()
        bound = source.names.get(name)
        if bound is not None:
            return bound.target, bound.others
        inner = f"{target}.{name}"
        if inner in self.modules:
            self._load(inner)
            return ModuleReference(inner), ()
        if source.state == "loading" and source is not importer:
            return Lazy(target, name), ()
        if source.is_package and "try" in _guards(event.guard) and inner not in self.extensions:
            return self._module(inner, event, importer) or Unknown(target, name), ()
        return self._absent(source, name), ()

    def _absent(self, source: LoadedModule, name: str) -> Target:
        inner = f"{source.name}.{name}"
        if inner in self.extensions or inner in self._candidates or (source.is_package and not self.is_dynamic(source)):
            self.extensions.add(inner)
            return ModuleReference(inner, extension=True)
        return Unknown(source.name, name)

    def _import_foreign(self, module: LoadedModule, event: ImportFacts, target: str) -> None:
        if event.name == "*":
            self._note(module, event.line, f"`from {target} import *` binds names of another package")
            return
        if event.name:
            path = f"{target}.{event.name}"
        else:
            path = event.bound if event.bound == target.partition(".")[0] else target
        self._bind(module, event.bound, self._imported(module, event, Foreign(path)))

    def _star(self, module: LoadedModule, event: ImportFacts, target: str) -> None:
        source = self.modules.get(target)
        if source is None:
            reference = self._module(target, event, module)
            if isinstance(reference, ModuleReference):
                self._note(module, event.line, f"`from {target} import *` binds all names of an extension module")
            return
        for name in self.star_names(source):
            bound = source.names.get(name)
            offered = module.is_package
            if bound is None:
                inner = f"{target}.{name}"
                if inner in self.modules:
                    self._load(inner)
                    bound = Binding(ModuleReference(inner), "submodule")
                elif self.is_dynamic(source):
                    bound = Binding(Unknown(target, name), "import")
                else:
                    continue
            self._bind(module, name, Binding(bound.target, "star", event.line, event.guard, offered, bound.others))

    def star_names(self, module: LoadedModule) -> tuple[str, ...]:
        """Names that ``from module import *`` takes: its ``__all__``, or all without a leading underscore."""
        exported = self.exports(module.name)
        if exported is None:
            return tuple(name for name in module.names if not name.startswith("_"))
        return tuple(dict.fromkeys([*exported.names, *(() if exported.complete else self.likely_names(module))]))

    @staticmethod
    def is_dynamic(module: LoadedModule) -> bool:
        """True for a module that may have names which no statement binds."""
        return any(function.name == "__getattr__" for function in module.facts.functions) or bool(module.facts.opaque)

    def likely_names(self, module: LoadedModule) -> tuple[str, ...]:
        """Names that an ``__all__`` of which part is unknown may well hold: public ones bound to things of the package.

        Modules and constants in capitals are left out: they are there for the module's own use.
        """
        return tuple(
            name
            for name, binding in module.names.items()
            if not name.startswith("_")
            and not name.isupper()
            and not isinstance(binding.target, (Foreign, ModuleReference))
        )

    # ``__all__``

    def exports(self, name: str) -> NameList | None:
        """The ``__all__`` of a module; None where it has none. ``complete`` is False when part of it is unknown."""
        module = self.modules.get(name)
        if module is None:
            return None
        if module.facts.exports is not None:
            return NameList(module.facts.exports)
        imported = module.history.get("__all__")
        if module.facts.exports_text is None:
            if imported is None or not isinstance(imported.target, AllOf):
                return None
            return self.exports(imported.target.module) or NameList((), (f"__all__ of {imported.target.module}",))
        if name in self._names:
            return self._names[name]
        if name in self._evaluating:
            return NameList((), (f"__all__ of {name} depends on itself",))
        self._evaluating.add(name)
        try:
            value = evaluate_names(module.facts.exports_text, lambda dotted: self._value(name, dotted))
            found = value if isinstance(value, NameList) else NameList((), (module.facts.exports_text,))
        finally:
            self._evaluating.discard(name)
        if module.state == "done":
            self._names[name] = found
        return found

    def _value(self, module: str, dotted: str) -> str | NameList | None:
        """For ``evaluate_names``: text of the constant that a dotted name stands for, or names that are known."""
        if dotted in ("dir()", "globals()", "vars()", "locals()"):
            return NameList(tuple(self.modules[module].names))
        head, _, last = dotted.rpartition(".")
        if last == "__all__" and head:
            found = self.resolve(module, head, history=True)
            if found is not None and isinstance(found.target, ModuleReference) and not found.rest:
                return self.exports(found.target.module)
            return None
        found = self.resolve(module, dotted, history=True)
        if found is None or found.rest:
            return None
        if isinstance(found.target, AllOf):
            return self.exports(found.target.module)
        if isinstance(found.target, Definition) and isinstance(found.target.fact, ConstantFacts):
            owner, fact = found.target.module, found.target.fact
            key = f"{owner}:{fact.name}"
            if key in self._evaluating:
                return None
            self._evaluating.add(key)
            try:
                return evaluate_names(fact.value, lambda inner: self._value(owner, inner))
            finally:
                self._evaluating.discard(key)
        return None

    # Resolution

    def lookup(self, module: str, name: str, *, history: bool = False) -> Binding | None:
        """The binding of a plain name in a module, its submodules included."""
        loaded = self.modules.get(module)
        if loaded is None:
            return None
        binding = loaded.names.get(name) or (loaded.history.get(name) if history else None)
        if binding is not None:
            return binding
        inner = f"{module}.{name}"
        if loaded.is_package and (inner in self.modules or inner in self.extensions):
            return Binding(ModuleReference(inner, inner not in self.modules), "submodule")
        return None

    def follow(self, target: Target) -> Target:
        """``target`` with late imports looked up."""
        seen = set()
        while isinstance(target, Lazy):
            if target in seen:
                return self._absent(self.modules[target.module], target.name)
            seen.add(target)
            found = self.lookup(target.module, target.name, history=True)
            if found is None:
                return self._absent(self.modules[target.module], target.name)
            target = found.target
        return target

    def resolve(
        self, module: str, dotted: str, local: Mapping[str, str] | None = None, *, history: bool = False
    ) -> Resolved | None:
        """What a dotted name used in ``module`` stands for; None for a builtin or an unknown name.

        ``local`` maps names imported inside a function to their dotted targets as written.
        """
        head, *rest = dotted.split(".")
        if local and head in local:
            return self._resolve_local(module, local[head], rest)
        key = (module, dotted, history)
        if key in self._resolved:
            return self._resolved[key]
        binding = self.lookup(module, head, history=history)
        if binding is None or key in self._resolving:
            # An alias that leads back to itself (``x = x.y``) stands for itself.
            return None
        self._resolving.add(key)
        try:
            found = self._descend(binding.target, rest, binding.others)
        finally:
            self._resolving.discard(key)
        if self._loaded and not self._resolving:
            self._resolved[key] = found
        return found

    def _resolve_local(self, module: str, written: str, rest: list[str]) -> Resolved | None:
        target = self.absolute(module, written)
        if target is None:
            return None
        if not self.is_internal(target):
            return Resolved(Foreign(".".join([target, *rest])))
        parts = target.split(".")
        # The longest leading part that is a module; what follows are its attributes.
        for length in range(len(parts), 0, -1):
            prefix = ".".join(parts[:length])
            if prefix in self.modules or prefix in self.extensions:
                return self._descend(ModuleReference(prefix, prefix not in self.modules), [*parts[length:], *rest])
        return None

    def _descend(
        self,
        target: Target,
        rest: Iterable[str],
        others: tuple[Target, ...] = (),
        passed: frozenset[int] = frozenset(),
    ) -> Resolved | None:
        """Follow attributes from ``target``; ``passed`` holds the aliases on the way, to end a circle of them."""
        left = list(rest)
        target = self.follow(target)
        while left:
            if isinstance(target, ModuleReference) and target.extension:
                target, left = ExtensionName(target.module, left[0]), left[1:]
            elif isinstance(target, ExtensionName):
                target, left = ExtensionName(target.module, f"{target.name}.{left[0]}"), left[1:]
            elif isinstance(target, ModuleReference):
                binding = self.lookup(target.module, left[0], history=True)
                if binding is None:
                    return Resolved(Unknown(target.module, left[0]), tuple(left[1:]), others)
                target, left, others = self.follow(binding.target), left[1:], (*others, *binding.others)
            elif isinstance(target, Foreign):
                return Resolved(Foreign(".".join([target.path, *left])), (), others)
            elif isinstance(target, Definition) and (alias := alias_text(target.fact)) is not None:
                further = self.resolve(target.module, alias, history=True) if id(target.fact) not in passed else None
                if further is None or (isinstance(further.target, Definition) and further.target == target):
                    return Resolved(target, tuple(left), others)
                circle = passed | {id(target.fact)}
                inner = self._descend(further.target, [*further.rest, *left], (*others, *further.others), circle)
                # An attribute of a class that is not a definition of its own (``apply = Function.apply``): the alias stands.
                return Resolved(target, tuple(left), others) if inner is not None and inner.rest else inner
            else:
                return Resolved(target, tuple(left), others)
        return Resolved(target, (), others)

    def final(self, target: Target) -> Resolved:
        """``target`` with late imports and plain aliases (``a = b.c``) followed to what they stand for."""
        found = Resolved(self.follow(target))
        for _ in range(100):
            current = found.target
            if found.rest or not isinstance(current, Definition):
                return found
            alias = alias_text(current.fact)
            if alias is None or _conditional(current.fact):
                return found
            further = self.resolve(current.module, alias, history=True)
            if further is None or isinstance(further.target, (Foreign, Unknown)) or further.target == current:
                return found
            if further.rest and isinstance(further.target, Definition):
                return found
            found = further
        return found


def alias_text(fact: Fact) -> str | None:
    """The dotted name that a constant is bound to, None for anything else."""
    if not isinstance(fact, ConstantFacts) or not fact.value:
        return None
    parts = fact.value.split(".")
    if fact.value in ("True", "False", "None") or not all(part.isidentifier() for part in parts):
        return None
    return fact.value


def _conditional(fact: Fact) -> bool:
    return any(guard.startswith(("for ", "while ", "with")) for guard in _guards(fact.guard))


def _guards(guard: str) -> list[str]:
    return guard.split(" / ") if guard else []


def _is_fallback(guard: str, before: str) -> bool:
    """Is ``guard`` the other branch of the ``if`` that ``before`` stands in, and the lesser one?"""
    taken = set(_guards(before))
    return any(
        one.startswith("else ") and not one.startswith("else not ") and f"if {one[5:]}" in taken
        for one in _guards(guard)
    )


def _events(facts: ModuleFacts) -> list[Fact | ImportFacts]:
    """Everything that binds names, in the order of the file."""
    events: list[Fact | ImportFacts] = [*facts.imports, *facts.functions, *facts.classes, *facts.constants]
    return sorted(events, key=lambda event: event.line)


def _modules(package: str, facts: Mapping[str, ModuleFacts]) -> Iterable[LoadedModule]:
    base = package_folder(package, facts)
    for path in sorted(facts):
        parts = PurePosixPath(path).with_suffix("").parts
        if parts[: len(base)] != base or not path.endswith(".py"):
            continue
        parts = parts[len(base) - 1 :]
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        if all(part.isidentifier() for part in name.split(".")):
            yield LoadedModule(name, path, is_package, facts[path])


def package_folder(package: str, paths: Iterable[str]) -> tuple[str, ...]:
    """Parts of the folder that is the package, relative to the source's root.

    Raises:
        SourceError: there is no such folder.
    """
    found = []
    for path in paths:
        parts = PurePosixPath(path).parts
        if package in parts[:-1]:
            index = parts.index(package)
            found.append((parts[index + 1 :] != ("__init__.py",), index, parts[: index + 1]))
    if not found:
        raise SourceError(
            f"holds no folder of Python files named {package!r}", fix=f"check the source of {package} in porter.toml"
        )
    return min(found)[2]
