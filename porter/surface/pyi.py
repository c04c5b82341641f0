"""Names that a ``.pyi`` stub declares for an extension module.

A stub is read as any Python file is; what it declares is then told in the terms of a binding. Names it imports are not
its own, unless ``__all__`` lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from porter.errors import UnreadableFileError, UnreadableUpstreamError
from porter.surface.model import (
    BindingFacts,
    ClassFacts,
    ConstantFacts,
    FunctionFacts,
    ImportFacts,
    ModuleFacts,
    Parameter,
    ParameterKind,
    Signature,
)
from porter.surface.python import extract

_ELLIPSIS = "..."
_OVERLOADS = ("overload", "typing.overload", "typing_extensions.overload")
_STATIC = ("staticmethod", "classmethod")


def read_stub(root: Path, module: str, *, label: str = "") -> tuple[BindingFacts, ...]:
    """Bindings of ``module`` (dotted) that its stub under ``root`` declares; () where there is no stub.

    ``module`` is looked for as ``a/b.pyi`` and as the package ``a/b/__init__.pyi``, whose other stubs are its
    submodules. A method's signature leaves its receiver out; an overloaded name has none. Stubs hold no bodies, so
    every digest is "". ``label`` leads every path that is told. Raises UnreadableUpstreamError naming each stub that cannot be read.
    """
    base = root.joinpath(*module.split("."))
    found: list[BindingFacts] = []
    causes: list[UnreadableFileError] = []
    for scope, path in _stubs(base):
        name = label + path.relative_to(root).as_posix()
        try:
            facts = extract(name, path.read_bytes())
        except UnreadableFileError as error:
            causes.append(error)
            continue
        except OSError as error:
            causes.append(UnreadableFileError(f"cannot be opened: {error.strerror}", path=name))
            continue
        if scope:
            outer, _, last = scope.rpartition(".")
            found.append(BindingFacts(outer, last, "module", name, 1))
        found.extend(_module(facts, scope, name))
    if causes:
        raise UnreadableUpstreamError(causes)
    return _distinct(found)


def declared(bindings: Sequence[BindingFacts], stub: Sequence[BindingFacts]) -> tuple[BindingFacts, ...]:
    """``bindings`` with what they leave open told by ``stub``: names whose arguments or value they do not know, and all
    names where they know none (the ``*`` of a module without sources)."""
    if not stub:
        return tuple(bindings)
    told = {(one.scope, one.name): one for one in stub}
    known = [one for one in bindings if one.name != "*"]
    filled = [told.get((one.scope, one.name), one) if one.opaque else one for one in known]
    names = {(one.scope, one.name) for one in known}
    return (*filled, *(one for one in stub if (one.scope, one.name) not in names))


def _stubs(base: Path) -> list[tuple[str, Path]]:
    """(scope, stub) of a module and its submodules, the module first."""
    single = base.with_suffix(".pyi")
    if single.is_file():
        return [("", single)]
    if not base.is_dir():
        return []
    found: list[tuple[str, Path]] = []
    for path in sorted(base.rglob("*.pyi")):
        parts = path.relative_to(base).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if all(part.isidentifier() for part in parts):
            found.append((".".join(parts), path))
    return sorted(found, key=lambda one: (one[0] != "", one[0]))


def _module(facts: ModuleFacts, scope: str, path: str) -> list[BindingFacts]:
    exported = frozenset(facts.exports or ())
    found: list[BindingFacts] = []
    found.extend(_functions(facts.functions, scope, path, method=False))
    for one in facts.classes:
        found.extend(_class(one, scope, path))
    found.extend(_constant(one, scope, path) for one in facts.constants if one.name != "__all__")
    for imported in facts.imports:
        found.extend(_reexport(imported, exported, scope, path))
    rank = {name: index for index, name in enumerate(facts.order)}
    return sorted(found, key=lambda one: rank.get(_head(one, scope), len(rank)))


def _head(binding: BindingFacts, scope: str) -> str:
    """The module-level name that a binding belongs to."""
    inner = binding.scope[len(scope) :].strip(".")
    return inner.partition(".")[0] if inner else binding.name


def _reexport(imported: ImportFacts, exported: frozenset[str], scope: str, path: str) -> list[BindingFacts]:
    if imported.guard == "TYPE_CHECKING" or imported.module == "__future__" or not imported.bound:
        return []
    if imported.bound not in exported:
        return []
    if imported.module == "." and imported.name:
        return []  # a submodule, which its own stub tells of
    target = f"{imported.module}.{imported.name}" if imported.name else imported.module
    opaque = f"re-exported from `{target}`"
    return [BindingFacts(scope, imported.bound, "constant", path, imported.line, opaque=opaque, alias_of=target)]


def _class(facts: ClassFacts, scope: str, path: str) -> list[BindingFacts]:
    inner = f"{scope}.{facts.name}" if scope else facts.name
    bases = tuple(base.text for base in facts.bases if base.keyword is None and base.text != "object")
    found = [BindingFacts(scope, facts.name, "class", path, facts.line, bases=bases, guard=facts.guard)]
    found.extend(_functions(facts.methods, inner, path, method=True))
    for one in facts.attributes:
        if one.annotation is not None and not _is_class_variable(one.annotation):
            returns = Signature((), one.annotation)
            found.append(BindingFacts(inner, one.name, "property", path, one.line, returns, writable=True))
        else:
            found.append(_constant(one, inner, path))
    for nested in facts.classes:
        found.extend(_class(nested, inner, path))
    return found


def _is_class_variable(annotation: str) -> bool:
    return annotation.partition("[")[0].rpartition(".")[2] in ("ClassVar", "Final")


def _constant(facts: ConstantFacts, scope: str, path: str) -> BindingFacts:
    known = facts.value not in ("", _ELLIPSIS)
    opaque = "" if known else "the stub does not give its value"
    value = facts.value if known else None
    return BindingFacts(scope, facts.name, "constant", path, facts.line, opaque=opaque, value=value, guard=facts.guard)


def _functions(functions: Sequence[FunctionFacts], scope: str, path: str, *, method: bool) -> list[BindingFacts]:
    found: list[BindingFacts] = []
    overloads: dict[str, list[FunctionFacts]] = {}
    for one in functions:
        names = [decorator.name for decorator in one.decorators]
        if any(name.endswith((".setter", ".deleter")) for name in names):
            found = [replace(b, writable=True) if b.name == one.name and b.kind == "property" else b for b in found]
            continue
        if any(name in _OVERLOADS for name in names):
            overloads.setdefault(one.name, []).append(one)
            if len(overloads[one.name]) == 1:
                found.append(BindingFacts(scope, one.name, "method" if method else "function", path, one.line))
            continue
        found.append(_function(one, names, scope, path, method=method))
    return [
        (
            replace(binding, opaque=f"{len(overloads[binding.name])} overloads in the stub")
            if binding.name in overloads and binding.signature is None
            else binding
        )
        for binding in found
    ]


def _function(facts: FunctionFacts, names: list[str], scope: str, path: str, *, method: bool) -> BindingFacts:
    signature = facts.signature
    kind = "function"
    writable = None
    if method:
        kind = "staticmethod" if any(name in _STATIC for name in names) else "method"
        if "staticmethod" not in names:
            signature = Signature(_without_receiver(signature.parameters), signature.returns)
        if any(name.rpartition(".")[2] in ("property", "cached_property") for name in names):
            kind, writable, signature = "property", False, Signature((), signature.returns)
    signature = Signature(tuple(_parameter(one) for one in signature.parameters), signature.returns)
    unknown = [one.name for one in signature.parameters if one.default == _ELLIPSIS]
    notes = tuple(f"default of {name}: the stub does not give it" for name in unknown)
    return BindingFacts(
        scope, facts.name, kind, path, facts.line, signature, guard=facts.guard, notes=notes, writable=writable
    )


def _without_receiver(parameters: Sequence[Parameter]) -> tuple[Parameter, ...]:
    first = parameters[0] if parameters else None
    named = first is not None and first.kind in (ParameterKind.POSITIONAL, ParameterKind.POSITIONAL_ONLY)
    return tuple(parameters[1:] if named else parameters)


def _parameter(parameter: Parameter) -> Parameter:
    """An ``arg0`` is pybind11's word for an argument that has no name, so it goes by position alone."""
    is_nameless = parameter.name.startswith("arg") and parameter.name[3:].isdigit()
    if is_nameless and parameter.kind is ParameterKind.POSITIONAL:
        return replace(parameter, kind=ParameterKind.POSITIONAL_ONLY)
    return parameter


def _distinct(bindings: Iterable[BindingFacts]) -> tuple[BindingFacts, ...]:
    """The last declaration of a name holds, in the place of the first."""
    found: dict[tuple[str, str], BindingFacts] = {}
    for binding in bindings:
        found[binding.scope, binding.name] = binding
    return tuple(found.values())
