"""Projects that the reader was not written for: nothing crashes, nothing goes missing unsaid.

TileOps and flash-linear-attention's core hold TileLang kernels (the latter beside many Triton ones). What has a kernel is
counted here with Python's own ``ast``, independently of the reader.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tilelang_tree import IMPORTED, Tree, names_of

from porter.sources.progress import QuietProgress
from porter.surface.read import read_surfaces

KERNEL = ("prim_func", "jit", "lazy_jit")


def kernel_functions(root: Path) -> Iterator[str]:
    """``module.name`` of every outermost function that TileLang's decorators make or make inside a kernel."""
    for path in sorted(root.rglob("*.py")):
        tree = ast.parse(path.read_bytes())
        if not any(
            IMPORTED in ast.unparse(node) for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))
        ):
            continue
        tilelang = names_of(tree)
        module = ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
        for name, function in _outermost(tree.body, module):
            inside = [node for node in ast.walk(function) if isinstance(node, ast.FunctionDef)]
            if any(_makes_kernel(decorator, tilelang) for node in inside for decorator in node.decorator_list):
                yield name


def _outermost(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.stmt]]:
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield f"{prefix}.{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _outermost(node.body, f"{prefix}.{node.name}")
        elif isinstance(node, (ast.If, ast.Try)):
            yield from _outermost(node.body, prefix)


def _makes_kernel(decorator: ast.expr, tilelang: set[str]) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    root, *_, last = [*ast.unparse(called).split("."), ""][:-1] * (2 if isinstance(called, ast.Name) else 1)
    return root in tilelang and last in KERNEL


@pytest.mark.parametrize(("name", "least"), [("tileops", 150), ("fla", 4)])
def test_every_kernel_is_told_or_named(source_root: Callable[[str], Path], name: str, least: int) -> None:
    root = source_root(name) / name
    wanted = set(kernel_functions(root))
    assert len(wanted) >= least
    found = {f"{module}.{qualname}": contract for module, qualname, _, contract in Tree.folder(root).contracts()}
    assert wanted - found.keys() == set()
    for identity, contract in found.items():
        assert contract.kernels, identity
        for kernel in contract.kernels:
            if kernel.style == "opaque" or any(argument.written is None for argument in kernel.arguments):
                assert contract.opaque, f"{identity}: {kernel.name} is not understood and nothing says so"


@pytest.mark.parametrize("name", ["tileops", "fla"])
def test_the_whole_package_is_read(source_root: Callable[[str], Path], name: str) -> None:
    (surface,), _ = read_surfaces(name, source_root(name), progress=QuietProgress())
    assert len(surface.symbols) > 300
