"""The analyzer against run-time truth: real packages are imported in a process of their own and read with ``inspect``.

Compiled modules that cannot be loaded here are stood in for. What run time cannot tell (a decorator that hides the
function, a module that does not import on this machine) is compared with what Python's own ``ast`` reads instead, so that
every symbol is compared with something that is not porter.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from porter.surface.backend import PACKAGE, Backend, link_backend
from porter.surface.cache import FactsCache
from porter.surface.link import extension_modules, link_package
from porter.surface.model import ModuleFacts, Parameter, ParameterKind, Signature, Surface, Symbol, SymbolKind
from porter.surface.pybind import read_extension
from porter.surface.reader import python_files, read_tree

_HELPER = Path(__file__).with_name("inspect_truth.py")
_MARK = "INSPECT-TRUTH "
_KINDS = {
    ParameterKind.POSITIONAL_ONLY: "positional-only",
    ParameterKind.POSITIONAL: "positional or keyword",
    ParameterKind.VAR_POSITIONAL: "variadic positional",
    ParameterKind.KEYWORD_ONLY: "keyword-only",
    ParameterKind.VAR_KEYWORD: "variadic keyword",
}
_ENVIRONMENT = {"CUDA_HOME": "/nonexistent", "EP_SUPPRESS_NCCL_CHECK": "1", "OMP_NUM_THREADS": "1"}

# Modules that do not import on a CPU, and why; all that they define is compared with ``ast``.
_NOT_IMPORTED = {"tilelang": ("No module named 'cutlass'", "cannot import name 'String' from 'tvm.runtime'")}
# Decorators that give back something that does not lead to the function: the definition is compared with ``ast``.
_HIDING = {"tilelang": {"tvm_ffi.register_global_func", "dispatch.register"}}
# At least so many functions and methods have to be compared by ``inspect``: a guard against comparing nothing.
_LEAST = {"tile_kernels": 280, "tilelang": 2200, "deep_gemm": 35, "deep_ep": 100, "flash_mla": 10, "deep_select": 2}


@dataclass(frozen=True)
class Truth:
    """A package's surface beside what run time says."""

    root: Path
    facts: Mapping[str, ModuleFacts]
    surface: Surface
    errors: Mapping[str, str]
    modules: Mapping[str, Mapping[str, Mapping[str, Any]]]
    attributes: Mapping[str, list[str]]
    symbols: Mapping[str, Mapping[str, Any]]


def _facts(root: Path, package: str) -> dict[str, ModuleFacts]:
    with FactsCache() as cache:
        return read_tree(root, python_files(root / package), cache=cache)


def _ask(
    package: str, paths: list[Path], modules: list[str], fakes: list[str], symbols: list[Symbol], folder: Path
) -> Any:
    rows = [
        {
            "id": symbol.id,
            "module": symbol.module,
            "qualname": symbol.qualname,
            "defaults": (
                [p.default for p in symbol.signature.parameters] if symbol.signature and _is_callable(symbol) else None
            ),
        }
        for symbol in symbols
    ]
    request = {
        "package": package,
        "paths": [str(path) for path in paths],
        "modules": modules,
        "fakes": fakes,
        "symbols": rows,
    }
    file = folder / "request.json"
    file.write_text(json.dumps(request), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(_HELPER), str(file)],
        capture_output=True,
        text=True,
        env={**os.environ, **_ENVIRONMENT},
        cwd=folder,
        check=False,
        timeout=900,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    assert lines, f"the helper said nothing and ended with {done.returncode}:\n{done.stderr[-3000:]}"
    return json.loads(lines[0].removeprefix(_MARK))


def _is_callable(symbol: Symbol) -> bool:
    return symbol.kind not in (SymbolKind.CLASS, SymbolKind.CONSTANT, SymbolKind.ATTRIBUTE)


@pytest.fixture(scope="module", params=["deep_select", "flash_mla", "deep_ep", "deep_gemm", "tile_kernels", "tilelang"])
def truth(
    request: pytest.FixtureRequest, source_root: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Truth:
    package = request.param
    root = source_root(package)
    facts = _facts(root, package)
    bindings = {module: read_extension(root, module) for module in extension_modules(package, root, facts)}
    surface = link_package(package, package, root, facts, bindings)
    modules = [module.name for module in surface.modules if not module.extension]
    fakes = [module.name for module in surface.modules if module.extension]
    symbols = [symbol for symbol in surface.symbols if symbol.module in modules]
    # tilelang is installed with its libraries; the unpacked sources of the others are put on the path.
    paths = [] if package == "tilelang" else [root]
    told = _ask(package, paths, modules, fakes, symbols, tmp_path_factory.mktemp(package))
    return Truth(root, facts, surface, told["errors"], told["modules"], told["attributes"], told["symbols"])


def _compare(symbol: Symbol, function: Mapping[str, Any]) -> list[str]:
    """Differences between a symbol's signature and the real one."""
    assert symbol.signature is not None
    ours = [(parameter.name, _KINDS[parameter.kind]) for parameter in symbol.signature.parameters]
    theirs = [(name, kind) for name, kind, _ in function["parameters"]]
    if ours != theirs:
        return [f"{symbol.id}: {ours} is not {theirs}"]
    out = []
    for parameter, (name, _, default) in zip(symbol.signature.parameters, function["parameters"], strict=True):
        if (parameter.default is None) is not (default is None):
            out.append(f"{symbol.id}: {name} has default {parameter.default}, really {default}")
        elif default is not None and not default["same"]:
            out.append(f"{symbol.id}: default of {name} is {parameter.default}, really {default['repr']}")
    if symbol.is_async is not function["async"]:
        out.append(f"{symbol.id}: async is {symbol.is_async}")
    return out


def test_modules_import(truth: Truth) -> None:
    known = _NOT_IMPORTED.get(truth.surface.source, ())
    unknown = {name: why for name, why in truth.errors.items() if not any(reason in why for reason in known)}
    assert unknown == {}


def test_signatures(truth: Truth) -> None:
    package = truth.surface.source
    differences: list[str] = []
    compared = 0
    trees: dict[str, ast.Module] = {}
    for symbol in truth.surface.symbols:
        told = truth.symbols.get(symbol.id)
        if told is None or not _is_callable(symbol) or symbol.opaque:
            continue
        if symbol.signature is None:
            differences.append(f"{symbol.id} has no signature")
            continue
        if symbol.value is not None:
            continue  # an alias of a method: see test_autograd_functions
        function = told.get("function")
        if function is not None:
            compared += 1
            differences += _compare(symbol, function)
            continue
        hidden = any(decorator.name in _HIDING.get(package, ()) for decorator in symbol.decorators)
        if symbol.module not in truth.errors and not hidden:
            differences.append(f"{symbol.id}: run time has no function there: {told}")
            continue
        path = truth.root / symbol.path
        tree = trees.setdefault(symbol.path, ast.parse(path.read_bytes()))
        differences += _compare_tree(symbol, tree)
    assert differences == []
    assert compared >= _LEAST[package]


def test_names_are_there(truth: Truth) -> None:
    """Every symbol exists at run time, but for what stands in a branch that is not taken here."""
    conditional = {
        f"{fact.name}@{path}"
        for path, facts in truth.facts.items()
        for fact in facts.constants
        if "if " in fact.guard or "else " in fact.guard
    }
    absent = []
    for symbol in truth.surface.symbols:
        told = truth.symbols.get(symbol.id)
        if told is None or symbol.module in truth.errors or told.get("error") is None:
            continue
        if f"{symbol.qualname}@{symbol.path}" not in conditional:
            absent.append(f"{symbol.id}: {told['error']}")
    assert absent == []


def test_exports_are_there(truth: Truth) -> None:
    """Every name that a module is said to show or to have is one of its attributes."""
    absent = [
        f"{module.name}.{export.name} -> {export.target}"
        for module in truth.surface.modules
        if module.name in truth.attributes
        for export in (*module.exports, *module.reachable, *module.foreign)
        if export.name not in truth.attributes[module.name]
    ]
    assert absent == []


def test_nothing_is_missing(truth: Truth) -> None:
    """Every function, class and module of the package that a public module has at run time is known, under that name."""
    symbols = {symbol.id: symbol for symbol in truth.surface.symbols}
    modules = {module.name: module for module in truth.surface.modules}
    missing = []
    seen = 0
    for name, module in modules.items():
        if any(part.startswith("_") for part in name.split(".")):
            continue
        known = {symbols[identity].qualname for identity in module.symbols}
        known |= {export.name for export in (*module.exports, *module.reachable)}
        for attribute, told in truth.modules.get(name, {}).items():
            if not told["inside"]:
                continue
            seen += 1
            if attribute in known or (told["module"] and f"{name}.{attribute}" in modules):
                continue
            # A name that its own module keeps out of ``__all__`` is not public through an import elsewhere.
            home = modules.get(told["home"])
            if (
                home is not None
                and home.name != name
                and home.exports_all is not None
                and attribute not in home.exports_all
            ):
                continue
            missing.append(f"{name}.{attribute}: {told}")
    assert missing == []
    assert seen >= _LEAST[truth.surface.source] // 4


def test_constructors(truth: Truth) -> None:
    """How a class is called, for those whose source says so in ``__init__`` or in dataclass fields."""
    differences = []
    for symbol in truth.surface.symbols:
        told = truth.symbols.get(symbol.id)
        if (
            symbol.kind is not SymbolKind.CLASS
            or symbol.signature is None
            or told is None
            or told.get("constructor") is None
        ):
            continue
        ours = [[parameter.name, _KINDS[parameter.kind]] for parameter in symbol.signature.parameters]
        if ours != told["constructor"] and not _constructor_is_replaced(symbol, told):
            differences.append(f"{symbol.id}: {ours} is not {told['constructor']}")
    assert differences == []


def _constructor_is_replaced(symbol: Symbol, told: Mapping[str, Any]) -> bool:
    """A class decorator or a metaclass gives another ``__init__`` than the one that is written."""
    return bool(
        symbol.decorators
        and told["constructor"] in ([["args", "variadic positional"], ["kwargs", "variadic keyword"]],)
    )


def test_autograd_functions(source_root: Callable[[str], Path]) -> None:
    """``F.apply`` takes what ``F.forward`` takes, without the context and by position."""
    root = source_root("tile_kernels_1_0_0")
    surface = link_package("tile_kernels", "tile_kernels", root, _facts(root, "tile_kernels"))
    found = [
        symbol
        for symbol in surface.symbols
        if symbol.kind is SymbolKind.FUNCTION and (symbol.value or "").endswith(".apply")
    ]
    assert found
    for symbol in found:
        assert symbol.signature is not None
        tree = ast.parse((root / symbol.path).read_bytes())
        owner = (symbol.value or "").rpartition(".")[0]
        klass = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner)
        forward = next(node for node in klass.body if isinstance(node, ast.FunctionDef) and node.name == "forward")
        assert [parameter.name for parameter in symbol.signature.parameters] == [one.arg for one in forward.args.args][
            1:
        ]


@pytest.mark.parametrize(("backend", "count"), [("asc", 42), ("cuda", 43)])
def test_factories(backend: Backend, count: int, source_root: Callable[[str], Path], tmp_path: Path) -> None:
    root = source_root("deepinfer")
    surface = link_backend(root, _facts(root, PACKAGE), backend)
    prefix = f"{PACKAGE}.model_executor.layers."
    symbols = [_moved(symbol, prefix) for symbol in surface.symbols]
    modules = [prefix + module.name for module in surface.modules]
    told = _ask(PACKAGE, [root, source_root("tile_kernels")], modules, [], symbols, tmp_path)
    assert told["errors"] == {}
    # The names that ops.py would take, by its own rule, from the real modules.
    real = {
        name
        for names in told["modules"].values()
        for name in names
        if name.endswith("_tl") and not name.startswith("_")
    }
    assert {symbol.qualname for symbol in symbols} == real
    assert len(real) == count
    differences = []
    for symbol in symbols:
        function = told["symbols"][symbol.id].get("function")
        assert function is not None, symbol.id
        differences += _compare(symbol, function)
        assert symbol.kind is SymbolKind.FACTORY
    assert differences == []


def _moved(symbol: Symbol, prefix: str) -> Symbol:
    from dataclasses import replace

    return replace(symbol, module=prefix + symbol.module)


# -- the second witness: Python's own ast ----------------------------------------------------------------------------


def _compare_tree(symbol: Symbol, tree: ast.Module) -> list[str]:
    nodes: list[ast.stmt] = tree.body
    node: ast.stmt | None = None
    for name in symbol.qualname.split("."):
        found = [
            one
            for one in _flat(nodes)
            if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and one.name == name
        ]
        node = next((one for one in found if one.lineno == symbol.line), found[-1] if found else None)
        if node is None:
            return [f"{symbol.id}: ast has no {symbol.qualname}"]
        nodes = node.body if isinstance(node, ast.ClassDef) else []
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return [f"{symbol.id}: ast has no function there"]
    assert symbol.signature is not None
    theirs = _signature(node.args)
    ours = [(p.name, p.kind, _dump(p.default)) for p in symbol.signature.parameters]
    return [] if ours == theirs else [f"{symbol.id}: {ours} is not {theirs}"]


def _flat(nodes: list[ast.stmt]) -> list[ast.stmt]:
    out: list[ast.stmt] = []
    for node in nodes:
        out.append(node)
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            out += _flat(node.body)
            out += _flat(getattr(node, "orelse", []))
            for handler in getattr(node, "handlers", []):
                out += _flat(handler.body)
    return out


def _dump(text: str | None) -> str | None:
    return ast.dump(ast.parse(text, mode="eval").body) if text is not None else None


def _signature(args: ast.arguments) -> list[tuple[str, ParameterKind, str | None]]:
    positional = [*args.posonlyargs, *args.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(args.defaults)) + list(args.defaults)
    rows: list[tuple[str, ParameterKind, str | None]] = []
    for index, (one, default) in enumerate(zip(positional, defaults, strict=True)):
        kind = ParameterKind.POSITIONAL_ONLY if index < len(args.posonlyargs) else ParameterKind.POSITIONAL
        rows.append((one.arg, kind, ast.dump(default) if default is not None else None))
    if args.vararg is not None:
        rows.append((args.vararg.arg, ParameterKind.VAR_POSITIONAL, None))
    for one, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        rows.append((one.arg, ParameterKind.KEYWORD_ONLY, ast.dump(default) if default is not None else None))
    if args.kwarg is not None:
        rows.append((args.kwarg.arg, ParameterKind.VAR_KEYWORD, None))
    return rows


def test_comparison_sees_differences() -> None:
    """The comparison itself: each kind of difference is found."""
    good = Signature((Parameter("a"), Parameter("b", default="1")))
    symbol = Symbol("m.f", "m", SymbolKind.FUNCTION, "m", "f", "m.py", signature=good)
    real: dict[str, Any] = {
        "parameters": [
            ["a", "positional or keyword", None],
            ["b", "positional or keyword", {"repr": "1", "same": True}],
        ],
        "async": False,
    }
    assert _compare(symbol, real) == []
    renamed = {**real, "parameters": [["x", "positional or keyword", None], real["parameters"][1]]}
    kind = {**real, "parameters": [["a", "keyword-only", None], real["parameters"][1]]}
    default = {
        **real,
        "parameters": [real["parameters"][0], ["b", "positional or keyword", {"repr": "2", "same": False}]],
    }
    required = {**real, "parameters": [real["parameters"][0], ["b", "positional or keyword", None]]}
    for other in (renamed, kind, default, required, {**real, "async": True}):
        assert len(_compare(symbol, other)) == 1
    tree = ast.parse("def f(a, b=1): ...")
    assert _compare_tree(symbol, tree) == []
    assert _compare_tree(symbol, ast.parse("def f(a, b=2): ...")) != []
    assert _compare_tree(symbol, ast.parse("def f(b, a=1): ...")) != []
