"""Which factories a kernel backend has, where they are called, and what the engine takes from the vendor packages."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from porter.errors import SourceError
from porter.surface.backend import EngineUse, engine_imports, engine_uses, link_backend, link_references
from porter.surface.cache import FactsCache
from porter.surface.model import Export, ModuleFacts, SymbolKind
from porter.surface.python import extract
from porter.surface.reader import python_files, read_tree

ROOT = Path("/nonexistent")
BASE = "deepinfer/model_executor/layers/tilelang_ops"


def facts(files: Mapping[str, str]) -> dict[str, ModuleFacts]:
    return {path: extract(path, textwrap.dedent(text).encode()) for path, text in files.items()}


def tree(**files: str) -> dict[str, ModuleFacts]:
    rows = {
        "deepinfer/__init__.py": "",
        f"{BASE}/__init__.py": "",
        f"{BASE}/asc/__init__.py": "",
        f"{BASE}/ops.py": "globals()[x] = 1\n",
    }
    return facts({**rows, **{f"{BASE}/{name.replace('__', '/')}.py": text for name, text in files.items()}})


FACTORY = """
import tilelang
import tilelang.language as T
from deepinfer.model_executor.layers.tilelang_ops.common import WIDTH
@tilelang.jit(out_idx=None)
def norm_tl(d, eps=1e-6):
    @T.prim_func
    def norm(x: T.Tensor[(d,), T.float32]):
        with T.Kernel(1):
            x[0] = WIDTH
    return norm
def _hidden_tl(): pass
def helper(): pass
"""


def test_names() -> None:
    found = link_backend(ROOT, tree(asc__norm=FACTORY, common="WIDTH = 1\n"), "asc")
    (symbol,) = found.symbols
    assert (symbol.id, symbol.module, symbol.qualname) == (
        "tilelang_ops.asc.norm.norm_tl",
        "tilelang_ops.asc.norm",
        "norm_tl",
    )
    assert symbol.kind is SymbolKind.FACTORY
    assert symbol.path == f"{BASE}/asc/norm.py"
    assert [module.name for module in found.modules] == ["tilelang_ops.asc", "tilelang_ops.asc.norm"]
    assert found.source == "tilelang_ops.asc"
    assert symbol.contract is not None
    assert [(a.name, a.written) for a in symbol.contract.kernels[0].arguments] == [("x", True)]


def test_body_follows_the_engine() -> None:
    first, second = (
        link_backend(ROOT, tree(asc__norm=FACTORY, common=f"WIDTH = {n}\n"), "asc").symbols[0] for n in (1, 2)
    )
    assert first.own == second.own
    assert first.body != second.body


def test_imported_and_assigned_names_count() -> None:
    found = link_backend(
        ROOT,
        tree(asc__a="from .b import f_tl\ng_tl = f_tl\nfrom . import b as b_tl\n", asc__b="def f_tl(): pass\n"),
        "asc",
    )
    assert [symbol.id for symbol in found.symbols] == ["tilelang_ops.asc.b.f_tl"]
    assert found.symbols[0].aliases == ("tilelang_ops.asc.a.f_tl", "tilelang_ops.asc.a.g_tl")
    module = next(one for one in found.modules if one.name == "tilelang_ops.asc.a")
    assert module.exports == (Export("f_tl", "tilelang_ops.asc.b.f_tl"), Export("g_tl", "tilelang_ops.asc.b.f_tl"))


def test_two_objects_with_one_name() -> None:
    with pytest.raises(SourceError, match="one object a name") as caught:
        link_backend(ROOT, tree(asc__a="def f_tl(): pass\n", asc__b="\ndef f_tl(): pass\n"), "asc")
    assert caught.value.place == f"{BASE}/asc/b.py:2"
    assert f"{BASE}/asc/a.py:1" in caught.value.message


def test_no_such_backend() -> None:
    with pytest.raises(SourceError, match="no kernel backend 'cuda'"):
        link_backend(ROOT, tree(asc__a=""), "cuda")


def test_call_sites_of_the_interfaces() -> None:
    interface = """
    from deepinfer.model_executor.layers.tilelang_ops import ops
    def norm(x):
        kernel = ops.norm_tl(4, eps=1)
        kernel(x, None)
    def other(x):
        ops.unknown_tl(1)(x)
    """
    found = link_backend(ROOT, tree(asc__norm=FACTORY, norm=interface, common="WIDTH = 1\n"), "asc")
    (site,) = found.call_sites
    assert (site.factory.rpartition(".")[2], site.caller, site.line) == ("norm_tl", "tilelang_ops.norm.norm", 4)
    assert [argument.text for argument in site.arguments] == ["4", "1"]
    assert [argument.text for argument in site.kernel_arguments or ()] == ["x", "None"]


def test_references() -> None:
    found = link_references(
        ROOT,
        tree(
            norm="def norm_ref(x): return x\ndef norm(x): pass\nfrom .common import y_ref\n",
            common="def y_ref(): pass\n",
        ),
    )
    assert [symbol.id for symbol in found.symbols] == ["tilelang_ops.common.y_ref", "tilelang_ops.norm.norm_ref"]
    assert found.source == "tilelang_ops"


ENGINE = {
    "deepinfer/__init__.py": "",
    "deepinfer/a.py": """
        import deep_gemm
        import tile_kernels.quant as quant
        from deep_ep import EPBuffer as Buffer
        import torch
        SIZE = deep_gemm.get_num_sms()
        def run(x):
            from flash_mla import flash_mla_sparse_fwd
            return deep_gemm.fp8_einsum(quant.cast(x)), Buffer.hint(1), torch.x
        def test_run():
            deep_gemm.only_in_a_test()
        class K(Buffer):
            def m(self): return deep_gemm.utils.align(1)
        deep_gemm.set_pdl(True)
        """,
    "deepinfer/b.py": "from .a import quant\ndef g(): return quant.cast_back()\n",
    "deepinfer/conftest.py": "import tilelang\n",
    "deepinfer/model_executor/layers/tilelang_ops/asc/norm.py": "import tilelang\n",
    "deepinfer/model_executor/layers/tilelang_ops/norm.py": "import tilelang.language as T\nX = T.float32\n",
}


def test_engine_imports() -> None:
    assert engine_imports(ROOT, facts(ENGINE)) == (
        "deep_ep.EPBuffer",
        "deep_ep.EPBuffer.hint",
        "deep_gemm",
        "deep_gemm.fp8_einsum",
        "deep_gemm.get_num_sms",
        "deep_gemm.set_pdl",
        "deep_gemm.utils.align",
        "flash_mla.flash_mla_sparse_fwd",
        "tile_kernels.quant",
        "tile_kernels.quant.cast",
        "tile_kernels.quant.cast_back",
        "tilelang.language",
        "tilelang.language.float32",
    )


def test_engine_uses_say_where() -> None:
    found = engine_uses(ROOT, facts(ENGINE))
    assert EngineUse("deep_gemm", "deepinfer/a.py", 2) in found
    assert EngineUse("deep_gemm.fp8_einsum", "deepinfer/a.py", 7) in found
    assert EngineUse("tile_kernels.quant.cast_back", "deepinfer/b.py", 2) in found


@pytest.fixture(scope="module")
def engine(source_root: Callable[[str], Path]) -> tuple[Path, dict[str, ModuleFacts]]:
    root = source_root("deepinfer")
    with FactsCache() as cache:
        return root, read_tree(root, python_files(root / "deepinfer"), cache=cache)


def test_real_backends(engine: tuple[Path, dict[str, ModuleFacts]]) -> None:
    asc, cuda = (link_backend(*engine, backend) for backend in ("asc", "cuda"))
    assert len(asc.symbols) == 42
    names = {symbol.qualname for symbol in cuda.symbols}
    assert names - {symbol.qualname for symbol in asc.symbols} == {"detect_outlier_and_abort_tl"}
    called = {site.factory.rpartition(".")[2] for site in asc.call_sites}
    assert {symbol.qualname for symbol in asc.symbols} - called == set()


def test_real_engine(engine: tuple[Path, dict[str, ModuleFacts]]) -> None:
    names = engine_imports(*engine)
    for expected in (
        "deep_gemm.fp8_einsum",
        "tile_kernels.mhc.post_kernel.mhc_post_fwd",
        "deep_select.interface.topk",
        "deep_ep.EPBuffer",
    ):
        assert expected in names
    assert not any(name.startswith("tilelang.ascend") for name in names)
