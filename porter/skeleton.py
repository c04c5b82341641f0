"""`porter new SYMBOL`: the start of an override, with all that is known of the upstream name in its docstring."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from porter.config import Config
from porter.drift import interface_digest, signature_text
from porter.errors import UsageError
from porter.lock import Lock
from porter.matching import call_arguments
from porter.overrides import BACKEND_SURFACE, PINS_NAME, UNWRITTEN, Overrides, Pin, override_path, write_pins
from porter.pins import source_of
from porter.plan import emitted_surfaces
from porter.render.formatter import format_python
from porter.render.stubs import indent
from porter.render.text import render_template
from porter.surface.model import CallSite, KernelArgument, Module, Symbol, SymbolKind, TensorSpec
from porter.tree import write_atomic


@dataclass(frozen=True)
class Skeleton:
    """A file to write: where, its text, and the symbol that it will supply."""

    path: Path
    text: str
    symbol: Symbol


def make_skeleton(config: Config, lock: Lock, overrides: Overrides, identity: str) -> Skeleton:
    """Text of the override file with the new name at its end.

    Raises:
        UsageError: the name has an override already, is a member of a class, or belongs to a surface that is not emitted.
    """
    symbol = lock.symbols[identity]
    if symbol.owner:
        raise UsageError(f"{identity} is a member of a class", fix=f"porter new {symbol.owner}")
    module = next((m for s in emitted_surfaces(lock) for m in s.modules if identity in m.symbols), None)
    if module is None:
        raise UsageError(f"{identity} is not emitted", fix="name a factory of tilelang_ops.asc or a vendor name")
    relative = override_path(module.name, is_package=module.is_package)
    existing = overrides.for_module(module.name)
    facts = existing.facts if existing is not None else None
    if facts is not None and any(one.name == symbol.qualname for one in facts.definitions):
        raise UsageError(f"{config.overrides}/{relative} defines {symbol.qualname} already", fix="edit it there")
    body = _definition(symbol, lock, module)
    head = existing.data.decode("utf-8").rstrip("\n") + "\n\n\n" if existing is not None else ""
    text = render_template(
        "override.py.j2", {"head": head, "module": module.name, "names": symbol.qualname, "body": body}, target=relative
    )
    return Skeleton(config.overrides_path / relative, format_python(text, target=relative), symbol)


def write_skeleton(config: Config, lock: Lock, overrides: Overrides, skeleton: Skeleton) -> None:
    """Write the file, and pin the symbol to the body that its author will read."""
    write_atomic(skeleton.path, skeleton.text.encode())
    symbol = skeleton.symbol
    pins = {
        **overrides.pins,
        symbol.id: Pin(
            symbol.id, symbol.body, interface_digest(symbol), source_of(lock, symbol.id), "written from this body"
        ),
    }
    write_atomic(config.overrides_path / PINS_NAME, write_pins(pins).encode())


def _definition(symbol: Symbol, lock: Lock, module: Module) -> str:
    doc = "\n".join(_facts(symbol, lock))
    refusal = f'raise NotImplementedError("{symbol.qualname}: {UNWRITTEN}")'
    if symbol.kind is SymbolKind.CLASS:
        return (
            f'class {symbol.qualname}:\n    """{doc}\n    """\n\n    def __init__(self) -> None:\n        {refusal}\n'
        )
    if symbol.kind in (SymbolKind.CONSTANT, SymbolKind.ATTRIBUTE):
        return f"# {symbol.qualname}: upstream's value cannot be carried over ({symbol.value or symbol.opaque}).\n{symbol.qualname} = None\n"
    text = signature_text(symbol.signature) if symbol.signature else "(*args, **kwargs)"
    if symbol.kind is not SymbolKind.FACTORY:
        return f'def {symbol.qualname}{text}:\n    """{doc}\n    """\n    {refusal}\n'
    names = _kernel_arguments(symbol)
    parameters = ", ".join(f"{name}: torch.Tensor" for name in names)
    kernel = f"def kernel({parameters}) -> None:\n    {refusal}"
    return f'def {symbol.qualname}{text}:\n    """{doc}\n    """\n\n{indent(kernel)}\n\n    return kernel\n'


def _kernel_arguments(symbol: Symbol) -> tuple[str, ...]:
    assert symbol.contract is not None
    for kernel in symbol.contract.kernels:
        return call_arguments(kernel, symbol.contract.out_idx)
    return ()


def _facts(symbol: Symbol, lock: Lock) -> Iterable[str]:
    yield f"Upstream's ``{symbol.id}`` ({symbol.path})."
    if symbol.contract is not None:
        for kernel in symbol.contract.kernels:
            when = f" when ``{kernel.condition}``" if kernel.condition else ""
            yield ""
            yield f"    Kernel arguments{when} (* may be written):"
            for argument in kernel.arguments:
                yield f"        {argument.name}{'*' if argument.written else ''}: {_spec(argument)}"
        if symbol.contract.out_idx not in (None, "None"):
            yield f"    out_idx: {symbol.contract.out_idx} (allocated by the kernel, not passed by callers)"
    for fact in symbol.docs:
        words = " ".join(part for part in (fact.shape or "", fact.dtype or "", " ".join(fact.flags)) if part)
        if words:
            yield f"    Documented: {fact.name}: {words}"
    name = symbol.qualname
    sites = [
        site
        for surface in lock.surfaces
        for site in surface.call_sites
        if site.factory == name or site.factory.endswith("." + name)
    ]
    if sites and symbol.id.startswith(BACKEND_SURFACE):
        yield ""
        yield "    Called by:"
        for site in sites:
            yield f"        {_site(site)}"
    reference = f"{name.removesuffix('_tl')}_ref"
    found = [identity for identity in lock.symbols if identity.endswith("." + reference)]
    if found:
        yield f"    Reference: ``{found[0]}``"


def _spec(argument: KernelArgument) -> str:
    spec: TensorSpec = argument.spec
    if spec.form == "scalar":
        return str(spec.dtype)
    shape = f"[{', '.join(spec.shape)}]" if spec.shape is not None else ""
    strides = f" strides ({', '.join(spec.strides)})" if spec.strides is not None else ""
    return f"{spec.dtype or ''} {shape}{strides}".strip() or spec.text


def _site(site: CallSite) -> str:
    def shown(arguments: Iterable[object]) -> str:
        return ", ".join((f"{a.keyword}={a.text}" if a.keyword else a.text) for a in arguments)  # type: ignore[attr-defined]

    kernel = f"({shown(site.kernel_arguments)})" if site.kernel_arguments is not None else ""
    return f"{site.caller}: {site.factory.rpartition('.')[2]}({shown(site.arguments)}){kernel}"
