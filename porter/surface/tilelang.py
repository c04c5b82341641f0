"""What one function has to do with TileLang: is it a factory, a macro, a helper; which kernels, which writes.

A factory is a function that gives a kernel: decorated with ``tilelang.jit`` under any import alias (bare or called, stacked
with autotune or staticmethod), named ``*_tl``, or a plain function that gives back a prim_func or a closure over a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import libcst as cst

from porter.surface.contract import ContractReader, LineOf, Reading
from porter.surface.model import Contract, Flow, Kernel, KernelArgument
from porter.surface.tilelang_flow import FlowReader
from porter.surface.tilelang_names import (
    FACTORY_DECORATORS,
    FACTORY_SUFFIX,
    KERNEL_DECORATORS,
    MACRO_DECORATORS,
    Dialect,
    canonical,
    decorated,
    dialect_of,
    imported,
)

_UNINTERESTING = ("test_", "bench_", "benchmark_")


@dataclass(frozen=True)
class TilelangFacts:
    """``factory``: gives a kernel. ``macro``: T.macro or T.prim_func at module level. ``contract``: its kernels.

    ``flow``: what it does to what it is given. ``skip``: nodes that the contract holds and the body digest leaves out.
    """

    factory: bool = False
    macro: bool = False
    contract: Contract | None = None
    flow: Flow | None = None
    skip: tuple[cst.CSTNode, ...] = ()


def describe(
    function: cst.FunctionDef, module: cst.Module, line_of: Callable[[cst.CSTNode], int]
) -> TilelangFacts | None:
    """Facts of a top-level function or method; None when it has nothing to do with TileLang.

    Parameters:
        function: a function or method of ``module``.
        module: the whole file, for its imports.
        line_of: 1-based line of a node; asked only for what is not understood.
    """
    dialect = dialect_of(module)
    named = function.name.value.endswith(FACTORY_SUFFIX)
    if not (dialect.speaks or named):
        return None
    own = _local_imports(function)
    if own:
        dialect = Dialect({**dialect.names, **own}, dialect.packages)
    paths = {dialect.of(decorator.decorator) for decorator in function.decorators}
    jit = bool(paths & FACTORY_DECORATORS)
    if jit or named:
        facts = _factory(function, dialect, line_of, jit=jit)
        # Elsewhere the ending means something else (Triton's wrappers): there only what gives a kernel is a factory.
        return facts if dialect.speaks or any(kernel.style != "opaque" for kernel in _kernels(facts)) else None
    if paths & KERNEL_DECORATORS:
        return _prim_func(function, dialect, line_of)
    if paths & MACRO_DECORATORS:
        return TilelangFacts(macro=True, flow=FlowReader(function, dialect, line_of).flow({}))
    return _plain(function, module, dialect, line_of)


def _factory(function: cst.FunctionDef, dialect: Dialect, line_of: LineOf, *, jit: bool) -> TilelangFacts:
    reader = FlowReader(function, dialect, line_of)
    reading = ContractReader(function, dialect, line_of, reader.path_of).factory(jit=jit)
    flow = reader.flow(_kernel_arguments(reading), tracked=reading.eager)
    return TilelangFacts(factory=True, contract=_contract(reading, flow), flow=flow, skip=tuple(reading.skip))


def _kernels(facts: TilelangFacts) -> tuple[Kernel, ...]:
    return facts.contract.kernels if facts.contract is not None else ()


def _prim_func(function: cst.FunctionDef, dialect: Dialect, line_of: LineOf) -> TilelangFacts:
    reader = FlowReader(function, dialect, line_of)
    reading = ContractReader(function, dialect, line_of, reader.path_of).single()
    flow = reader.flow(_kernel_arguments(reading))
    return TilelangFacts(macro=True, contract=_contract(reading, flow), flow=flow)


def _plain(function: cst.FunctionDef, module: cst.Module, dialect: Dialect, line_of: LineOf) -> TilelangFacts | None:
    if function.name.value.startswith(_UNINTERESTING) and not _defines_functions(function.body):
        return None
    reader = FlowReader(function, dialect, line_of)
    contracts = ContractReader(function, dialect, line_of, reader.path_of)
    reading, factory = contracts.plain(lambda node: reader.calls_any(node, _kernel_makers(module)))
    flow = reader.flow(_kernel_arguments(reading), tracked=frozenset() if factory else None)
    contract = _contract(reading, flow) if reading.kernels or reading.opaque else None
    return TilelangFacts(
        factory=factory, contract=contract, flow=flow, skip=tuple(reading.skip) if contract is not None else ()
    )


def _contract(reading: Reading, flow: Flow) -> Contract:
    return Contract(tuple(reading.kernels), reading.out_idx, tuple(reading.opaque), flow)


def _kernel_arguments(reading: Reading) -> dict[cst.CSTNode, Sequence[KernelArgument]]:
    return {
        node: kernel.arguments for kernel, node in zip(reading.kernels, reading.nodes, strict=True) if node is not None
    }


@lru_cache(maxsize=4)
def _kernel_makers(module: cst.Module) -> frozenset[str]:
    """Names of the module's own factories."""
    dialect = dialect_of(module)
    return frozenset(
        statement.name.value
        for statement in module.body
        if isinstance(statement, cst.FunctionDef)
        and (statement.name.value.endswith(FACTORY_SUFFIX) or decorated(statement, dialect, FACTORY_DECORATORS))
    )


def _statements(suite: cst.BaseSuite) -> Iterator[cst.BaseStatement | cst.BaseSmallStatement]:
    """Every statement of a suite and of its blocks, nested functions' bodies left out."""
    for statement in suite.body:
        yield statement
        if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
            continue
        pending: list[object] = [statement]
        while pending:
            part = pending.pop()
            body = getattr(part, "body", None)
            if isinstance(body, cst.BaseSuite):
                yield from _statements(body)
            for name in ("orelse", "finalbody"):
                if isinstance(getattr(part, name, None), cst.CSTNode):
                    pending.append(getattr(part, name))
            pending.extend(getattr(part, "handlers", ()))
            pending.extend(getattr(part, "cases", ()))


def _defines_functions(suite: cst.BaseSuite) -> bool:
    return any(isinstance(statement, cst.FunctionDef) for statement in _statements(suite))


def _local_imports(function: cst.FunctionDef) -> dict[str, str]:
    """TileLang names that the function imports itself."""
    found: dict[str, str] = {}
    for statement in _statements(function.body):
        for small in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
            if isinstance(small, (cst.Import, cst.ImportFrom)):
                found.update(
                    (local, canonical(path)) for local, path in imported(small) if path.split(".")[0] == "tilelang"
                )
    return found
