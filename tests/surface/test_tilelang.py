"""What counts as a factory, a macro or neither; what the contract takes out of the body digest; the real trees."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import libcst as cst
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from tilelang_tree import Tree, read

from porter.codec import from_json, to_json
from porter.surface.digest import digest_of
from porter.surface.model import Contract, Flow
from porter.surface.tilelang import TilelangFacts, describe

IMPORTS = "import tilelang\nfrom tilelang import language as T\n\n"
KERNEL = """
    @T.prim_func
    def kernel(x: T.Tensor[(n,), T.float32], y: T.Tensor((n,), "float32")):
        with T.Kernel(1) as pid:
            T.copy(x, y)
    return kernel
"""
FACTORY = f"def make(n):{KERNEL}"


def facts_of(source: str, name: str = "make") -> TilelangFacts | None:
    return read(source).facts[name]


@pytest.mark.parametrize(
    ("imports", "decorator"),
    [
        ("import tilelang\nfrom tilelang import language as T", "@tilelang.jit"),
        ("import tilelang\nimport tilelang.language as T", "@tilelang.jit(out_idx=[-1])"),
        ("import tilelang as tl\nfrom tilelang.ascend import language as T", "@tl.jit(target='ascend')"),
        ("from tilelang import jit, language as T", "@jit"),
        ("from tilelang.jit import jit as compiled\nimport tilelang.language as T", "@compiled()"),
        ("import tilelang.language as T", "@T.jit"),
        ("import tilelang\nimport tilelang.language as T", "@tilelang.autotune(configs=[])\n@tilelang.jit(out_idx=[1])"),
        ("import tilelang\nimport tilelang.language as T\nmy_jit = tilelang.jit(out_idx=[1])", "@my_jit"),
        ("import functools, tilelang\nimport tilelang.language as T\nfast = functools.partial(tilelang.jit, verbose=1)", "@fast(out_idx=[1])"),
        ("from tilelang import *\nfrom other import *", "@tilelang.jit"),
        ("from .common import T, tilelang", "@tilelang.jit"),
        ("try:\n    import tilelang\n    from tilelang import language as T\nexcept ImportError:\n    pass", "@tilelang.jit"),
    ],
)  # fmt: skip
def test_factories_by_decorator(imports: str, decorator: str) -> None:
    facts = facts_of(f"{imports}\n\n{decorator}\n{FACTORY}")
    assert facts is not None and facts.factory and facts.contract is not None
    (kernel,) = facts.contract.kernels
    assert kernel.style == "prim_func" and [argument.name for argument in kernel.arguments] == ["x", "y"]


def test_a_static_method_is_a_factory() -> None:
    body = FACTORY.replace("\n", "\n    ")
    facts = read(f"{IMPORTS}class Kernels:\n    @staticmethod\n    @tilelang.jit(out_idx=[-1])\n    {body}").facts[
        "Kernels.make"
    ]
    assert facts is not None and facts.factory and facts.contract is not None and facts.contract.out_idx == "[-1]"


@pytest.mark.parametrize(
    "source",
    [
        f"{IMPORTS}{FACTORY}",
        f"{IMPORTS}def make(n):\n    return tilelang.compile(inner(n), out_idx=[1])\n",
        f"{IMPORTS}@tilelang.jit\ndef inner(n):{KERNEL}\ndef make(n):\n    kernel = inner(n)\n    def launch(x, y):\n        kernel(x, y)\n    return launch\n",
        "def make_tl(n):\n    def kernel(x, y):\n        y.copy_(x)\n    return kernel\n",
    ],
)  # fmt: skip
def test_plain_functions_that_give_a_kernel(source: str) -> None:
    facts = [facts for name, facts in read(source).facts.items() if name.startswith("make")]
    assert facts[0] is not None and facts[0].factory


@pytest.mark.parametrize(
    "source",
    [
        "def make(n):\n    return n\n",
        "import triton\n\n@triton.jit\ndef make(n):\n    return n\n",
        "from tvm.script import tir as T\n\n@T.prim_func\ndef make(a: T.handle):\n    pass\n",
        "def make_tl(x):\n    launch[1](x)\n",
        "def make_tl(x):\n    return x\n",
        "from other import *\n\ndef make_tl(x):\n    return x\n",
    ],
)
def test_functions_that_have_nothing_to_do_with_it(source: str) -> None:
    assert list(read(source).facts.values()) == [None]


@pytest.mark.parametrize(
    "source",
    [
        "def make(n):\n    return n + 1\n",
        "def make(n):\n    return tilelang.compile(n, out_idx=[1])\n",
        "def make(n):\n    def inner():\n        return n\n    return inner\n",
    ],
)
def test_helpers_beside_kernels_have_a_flow_and_are_no_factory(source: str) -> None:
    facts = facts_of(IMPORTS + source)
    assert (
        facts is not None
        and not facts.factory
        and not facts.macro
        and facts.contract is None
        and facts.flow is not None
    )


@pytest.mark.parametrize(("decorator", "contract"), [("T.macro", False), ("T.prim_func", True)])
def test_macros(decorator: str, contract: bool) -> None:
    facts = facts_of(f"{IMPORTS}@{decorator}\ndef make(x: T.Tensor[(4,), T.float32]):\n    x[0] = 1.0\n")
    assert facts is not None and facts.macro and not facts.factory
    assert (facts.contract is not None) == contract
    assert facts.flow is not None and facts.flow.written == ("x",)


def test_a_module_level_name_of_a_foreign_package_is_not_tilelang() -> None:
    facts = facts_of("import tilelang\nfrom torch.jit import script as jit\n\n@jit\ndef make(n):\n    n[0] = 1\n")
    assert facts == TilelangFacts(flow=Flow(written=("n",), parameters=("n",)))


# ---------------------------------------------------------------------------- the body digest


def body_digest(source: str) -> str:
    module = cst.parse_module(source)
    function = next(node for node in module.body if isinstance(node, cst.FunctionDef))
    facts = describe(function, module, lambda node: 0)
    assert facts is not None
    return digest_of(function.body, skip=facts.skip)


EAGER = "@tilelang.jit\ndef make(x, y, n: int):\n    x: T.Tensor[(n,), T.float32]\n    y: T.Tensor[(n,), T.float32]\n    z = T.empty((n,), T.float32)\n    with T.Kernel(1):\n        T.copy(x, y)\n    return z\n"  # fmt: skip
NAMED = "@tilelang.jit\ndef make(n):\n    shape = (n, 4)\n    @T.prim_func\n    def kernel(x: T.Tensor(shape, T.int8)):\n        x[0, 0] = 1\n    return kernel\n"  # fmt: skip
LAZY = f"@tilelang.jit\n{FACTORY}"
CLOSURE = "def make_tl(n):\n    def kernel(x: torch.Tensor, y: torch.Tensor) -> None:\n        y.copy_(x)\n    return kernel\n"


@pytest.mark.parametrize(
    ("source", "old", "new"),
    [
        (LAZY, "x: T.Tensor[(n,), T.float32]", "x: T.Tensor[(n,), T.bfloat16]"),
        (LAZY, 'T.Tensor((n,), "float32")', 'T.Tensor((n, 4), "float32")'),
        (EAGER, "y: T.Tensor[(n,), T.float32]", "y: T.Tensor[(n,), T.int8]"),
        (EAGER, "T.empty((n,), T.float32)", "T.empty((n, 2), T.float32)"),
        (NAMED, "shape = (n, 4)", "shape = (n, 8)"),
        (CLOSURE, "x: torch.Tensor, y", "x: torch.Tensor | None, y"),
    ],
)
def test_a_change_of_type_moves_the_contract_alone(source: str, old: str, new: str) -> None:
    assert old in source
    before, after = IMPORTS + source, IMPORTS + source.replace(old, new)
    assert body_digest(before) == body_digest(after)
    assert contracts(before) != contracts(after)


@pytest.mark.parametrize(
    ("source", "old", "new"),
    [
        (LAZY, "T.copy(x, y)", "T.copy(y, x)"),
        (LAZY, "T.Kernel(1)", "T.Kernel(2)"),
        (EAGER, "T.copy(x, y)", "T.copy(x, z)"),
        (CLOSURE, "y.copy_(x)", "y.add_(x)"),
    ],
)
def test_a_change_of_the_body_moves_the_digest(source: str, old: str, new: str) -> None:
    before, after = IMPORTS + source, IMPORTS + source.replace(old, new)
    assert body_digest(before) != body_digest(after)


@pytest.mark.parametrize("source", [LAZY, EAGER, NAMED, CLOSURE])
def test_layout_moves_nothing(source: str) -> None:
    spaced = (
        source.replace("(n,)", "(\n        n,  # rows\n    )")
        .replace("T.copy(x, y)", "T.copy( x , y )")
        .replace('"float32"', "'float32'")
    )
    assert body_digest(IMPORTS + source) == body_digest(IMPORTS + spaced)
    assert contracts(IMPORTS + source) == contracts(IMPORTS + spaced)


def contracts(source: str) -> list[Contract]:
    return [contract for _, _, _, contract in Tree.of(sample=source).contracts()]


@pytest.mark.parametrize("step", ["node.next", "node.next or node.left.right", "node[0].next", "(node.next, node)"])
def test_a_walk_along_attributes_ends(step: str) -> None:
    loop = f"    node = other.start\n    while node is not None:\n        node = {step}\n        use(node)\n"
    facts = facts_of(f"{IMPORTS}def make(n, start):\n{loop}{KERNEL}")
    assert facts is not None and facts.contract is not None


def test_facts_survive_json() -> None:
    facts = facts_of(f"{IMPORTS}@tilelang.jit\n{FACTORY}")
    assert facts is not None and facts.contract is not None
    assert from_json(json.loads(json.dumps(to_json(facts.contract))), Contract) == facts.contract


# ---------------------------------------------------------------------------- real trees

# Arguments that hold addresses: what is written through them cannot be told.
POINTER_TABLES = {
    "mhc_multilayer_recompute_asc", "mhc_multilayer_recompute_cuda",
    "get_batched_transpose_weight_sf_kernel_asc", "get_batched_transpose_weight_sf_kernel_cuda",
}  # fmt: skip


@cache
def real(root: Path) -> dict[str, Contract]:
    """Every factory below a folder, by ``module.name``."""
    found = {}
    for module, name, factory, contract in Tree.folder(root).contracts():
        assert factory, f"{module}.{name} is no factory"
        found[f"{module}.{name}"] = contract
    return found


def unknowable(contracts: dict[str, Contract]) -> set[str]:
    return {
        name.rpartition(".")[2]
        for name, contract in contracts.items()
        if any(argument.written is None for kernel in contract.kernels for argument in kernel.arguments)
    }


@pytest.mark.parametrize(("backend", "exported", "private"), [("asc", 42, 2), ("cuda", 43, 0)])
def test_every_deepinfer_factory(source_root: Callable[[str], Path], backend: str, exported: int, private: int) -> None:
    found = real(source_root("deepinfer") / "deepinfer/model_executor/layers/tilelang_ops" / backend)
    names = [name.rpartition(".")[2] for name in found]
    public = [name for name in names if name.endswith("_tl") and not name.startswith("_")]
    assert (len(public), len(names) - len(public)) == (exported, private)
    assert {name: contract.opaque for name, contract in found.items() if contract.opaque} == {}
    for name, contract in found.items():
        assert all(kernel.arguments for kernel in contract.kernels), name
        assert (
            any(argument.written for kernel in contract.kernels for argument in kernel.arguments)
            or "detect_outlier" in name
        )
    assert unknowable(found) == set()


def test_deepinfer_styles(source_root: Callable[[str], Path]) -> None:
    found = real(source_root("deepinfer") / "deepinfer/model_executor/layers/tilelang_ops/asc")
    assert Counter(kernel.style for contract in found.values() for kernel in contract.kernels) == {
        "prim_func": 43,
        "delegated": 2,
        "closure": 1,
    }
    several = {
        name.rpartition(".")[2]: [kernel.condition for kernel in contract.kernels]
        for name, contract in found.items()
        if len(contract.kernels) > 1
    }
    assert several == {
        "gather_tl": ["D >= MIN_MTE_ROW_BYTES", "not (D >= MIN_MTE_ROW_BYTES)"],
        "store_kv_cache_tl": ["layout.quantized_dtype is None", "not (layout.quantized_dtype is None)"],
    }
    kept = (
        found["asc.state_cache.select_state_slice_tl"].kernels[0].arguments,
        found["asc.state_cache.load_state_to_cache_tl"].kernels[0].arguments,
    )
    assert [[argument.written for argument in arguments] for arguments in kept] == [
        [True, False, False],
        [False, True, False],
    ]
    assert found["asc.candidate_blocks.candidate_block_max_tl"].out_idx == "[4, 5, 6]"


def test_every_tile_kernels_factory(source_root: Callable[[str], Path]) -> None:
    found = real(source_root("tile_kernels") / "tile_kernels")
    assert Counter(contract.kernels[0].style for contract in found.values()) == {"prim_func": 53, "eager": 39}
    assert {name: contract.opaque for name, contract in found.items() if contract.opaque} == {}
    assert sum(bool(kernel.outputs) for contract in found.values() for kernel in contract.kernels) == 4
    assert unknowable(found) == POINTER_TABLES


def test_a_release_that_nothing_was_tuned_for(source_root: Callable[[str], Path]) -> None:
    found = real(source_root("tile_kernels_1_0_0") / "tile_kernels")
    assert len(found) == 48
    assert {name: contract.opaque for name, contract in found.items() if contract.opaque} == {}
    assert sorted(contract.out_idx for contract in found.values() if contract.out_idx is not None) == [
        "[4]",
        "[5, 6, 7, 8]",
    ]
    assert unknowable(found) == {"_mhc_multilayer_recompute_kernel"}
