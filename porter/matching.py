"""Does an override keep the promise of upstream's signature? The comparison rules are mypy stubtest's."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from porter.surface.model import Contract, Kernel, Parameter, ParameterKind, Signature

_POSITIONAL = (ParameterKind.POSITIONAL_ONLY, ParameterKind.POSITIONAL)


def signature_differences(upstream: Signature, override: Signature) -> tuple[str, ...]:
    """How a signature fails to accept exactly upstream's calls; empty when it does.

    Positional parameters are compared by order and name, keyword-only ones by name; defaults by presence and value
    (``True`` is not ``1``, ``...`` upstream matches any); ``*args``/``**kwargs`` of the override absorb what upstream names;
    an extra parameter of the override is tolerated when its name is private and it has a default.
    """
    theirs, ours = _Split(upstream.parameters), _Split(override.parameters)
    found: list[str] = []
    for index, parameter in enumerate(theirs.positional):
        if index >= len(ours.positional):
            if parameter.name in ours.keyword:
                found.append(f"{parameter.name!r} must be positional, is keyword-only")
            elif ours.var_positional is None:
                found.append(f"{parameter.name!r} is missing")
            continue
        mine = ours.positional[index]
        if mine.name != parameter.name and ParameterKind.POSITIONAL_ONLY not in (mine.kind, parameter.kind):
            found.append(f"parameter {index + 1} must be {parameter.name!r}, is {mine.name!r}")
            continue
        if parameter.kind is ParameterKind.POSITIONAL and mine.kind is ParameterKind.POSITIONAL_ONLY:
            found.append(f"{parameter.name!r} must be accepted by keyword, is positional-only")
        found.extend(_default_differences(parameter, mine))
    for extra in ours.positional[len(theirs.positional) :]:
        if extra.name in theirs.keyword:
            found.extend(_default_differences(theirs.keyword[extra.name], extra))
        elif theirs.var_positional is None and not _tolerated(extra):
            found.append(f"{extra.name!r} does not exist upstream")
    if theirs.var_positional is not None and ours.var_positional is None:
        found.append(f"*{theirs.var_positional.name} is missing")
    positional_names = {p.name for p in ours.positional}
    for name, parameter in theirs.keyword.items():
        if name in ours.keyword:
            found.extend(_default_differences(parameter, ours.keyword[name]))
        elif name not in positional_names and ours.var_keyword is None:
            found.append(f"keyword-only {name!r} is missing")
    their_positional = {p.name for p in theirs.positional}
    for name, parameter in ours.keyword.items():
        if (
            name not in theirs.keyword
            and name not in their_positional
            and theirs.var_keyword is None
            and not _tolerated(parameter)
        ):
            found.append(f"keyword-only {name!r} does not exist upstream")
    if theirs.var_keyword is not None and ours.var_keyword is None:
        found.append(f"**{theirs.var_keyword.name} is missing")
    return tuple(found)


class _Split:
    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.positional = [p for p in parameters if p.kind in _POSITIONAL]
        self.keyword = {p.name: p for p in parameters if p.kind is ParameterKind.KEYWORD_ONLY}
        self.var_positional = next((p for p in parameters if p.kind is ParameterKind.VAR_POSITIONAL), None)
        self.var_keyword = next((p for p in parameters if p.kind is ParameterKind.VAR_KEYWORD), None)


def _tolerated(parameter: Parameter) -> bool:
    return parameter.name.startswith("_") and parameter.default is not None


def _default_differences(upstream: Parameter, override: Parameter) -> list[str]:
    if upstream.default is None and override.default is None:
        return []
    if upstream.default is None:
        return [f"{upstream.name!r} must be required, has the default {override.default}"]
    if override.default is None:
        return [f"{upstream.name!r} must have the default {upstream.default}, is required"]
    if upstream.default == "..." or _same_value(upstream.default, override.default):
        return []
    return [f"the default of {upstream.name!r} must be {upstream.default}, is {override.default}"]


def _same_value(first: str, second: str) -> bool:
    if first == second:
        return True
    try:
        a, b = ast.literal_eval(first), ast.literal_eval(second)
    except (ValueError, SyntaxError):
        return False
    return type(a) is type(b) and bool(a == b)


def call_arguments(kernel: Kernel, out_idx: str | None) -> tuple[str, ...]:
    """Names that a caller passes to a kernel: its arguments without those that ``out_idx`` allocates and returns."""
    names = [argument.name for argument in kernel.arguments]
    if out_idx is None or kernel.style not in ("prim_func", "delegated"):
        return tuple(names)
    try:
        value = ast.literal_eval(out_idx)
    except (ValueError, SyntaxError):
        return tuple(names)
    returned = {index % len(names) for index in ([value] if isinstance(value, int) else value or []) if names}
    return tuple(name for index, name in enumerate(names) if index not in returned)


def kernel_differences(upstream: Contract, override: Contract) -> tuple[str, ...]:
    """How the kernels that an override's factory returns fail to accept upstream's calls."""
    found: list[str] = []
    wanted = {
        call_arguments(kernel, upstream.out_idx) for kernel in upstream.kernels if kernel.style not in ("opaque",)
    }
    mine = [kernel for kernel in override.kernels if kernel.style == "closure"]
    if wanted and not mine:
        return ("returns no inner function that porter can see",)
    for kernel in mine:
        names = tuple(argument.name for argument in kernel.arguments)
        if wanted and names not in wanted:
            expected = " or ".join(f"({', '.join(names)})" for names in sorted(wanted))
            found.append(f"the kernel {kernel.name} must take {expected}, takes ({', '.join(names)})")
    return tuple(found)
