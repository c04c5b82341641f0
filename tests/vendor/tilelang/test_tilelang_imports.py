"""What must import beside the emitted tilelang: upstream's kernels and references, the engine's interface modules."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

REASON = "not supported on Neuron \\(basic mode\\)"


def test_decorators_keep_the_function_and_raise_when_it_is_asked_for(tl: Any) -> None:
    t = tl.language

    @tl.jit(out_idx=None, target="ascend", pass_configs={tl.PassConfigKey.TL_DISABLE_OUT_OF_BOUND_WARNING: True})
    def factory(hidden: int, dtype: Any = t.float32) -> Any:
        raise AssertionError("a factory is not run")

    @tl.jit
    def bare(x, y: int = 3) -> Any:
        x: t.Tensor[(y,), t.float32]

    @t.macro
    def macro(x: t.Ref) -> t.float32:
        return x

    @t.macro()
    def called(x: t.Tensor) -> None:
        return None

    @t.prim_func
    def kernel(x: t.int32) -> None:
        return None

    assert (
        factory.signature.parameters["hidden"].annotation == "int"
        and factory.pass_configs
        and factory.target == "ascend"
    )
    assert (
        bare.mode == "auto"
        and macro.name == "macro"
        and macro.orig_func("x") == "x"
        and macro == macro
        and macro != called
    )
    assert kernel.arg_names == ["x"] and kernel.__code__.co_name == "kernel"
    for name, call in (("factory", lambda: factory(4)), ("bare", lambda: bare(1)), ("macro", lambda: macro(1)), ("called", lambda: called(1)),
                       ("kernel", lambda: kernel(1)), ("kernel", lambda: kernel.get_tir()), ("float32", lambda: t.float32(1.0))):  # fmt: skip
        with pytest.raises(NotImplementedError, match=f"^{name}: {REASON}$"):
            call()
    for call in (
        lambda: t.alloc_shared((1,), "int8"),
        lambda: t.copy(1, 2),
        lambda: t.Kernel(1),
        lambda: t.dynamic("n"),
        lambda: t.const("n"),
    ):
        with pytest.raises(NotImplementedError, match=REASON):
            call()
    with pytest.raises(NotImplementedError, match=REASON):
        tl.compile(None)


WALK = """
import importlib, json, os, pkgutil, sys
exists = os.path.exists
ascend = {ascend}
os.path.exists = lambda path: (ascend and path == "/dev/davinci_manager") or exists(path)
import torch
# Upstream decorates one reference with it; the compiler's import takes longer than all the rest.
torch.compile = lambda function: function
import tilelang, tile_kernels
assert tilelang.__file__.startswith({vendor!r}) and tile_kernels.__file__.startswith({real!r})
failed, seen = [], 0
for _, name, _ in pkgutil.walk_packages(tile_kernels.__path__, "tile_kernels."):
    seen += 1
    try:
        importlib.import_module(name)
    except Exception as error:
        failed.append([name, repr(error)[:200]])
import torch
packed = tile_kernels.torch.cast(torch.ones(4, 64), "e4m3", (1, 32), round_sf=True, use_packed_ue8m0=True)[1]
print("@" + json.dumps([seen, failed, str(packed.dtype)]))
"""


@pytest.mark.parametrize("ascend", [True, False])
def test_all_of_the_real_tile_kernels_imports(
    run_with: Callable[..., str], source_root: Callable[[str], Path], vendor_folder: Path, tmp_path: Path, ascend: bool
) -> None:
    real = source_root("tile_kernels")
    # The emitted tile_kernels lies beside the emitted tilelang: show a folder without it.
    only = tmp_path / "vendor"
    only.mkdir()
    for name in ("tilelang", "neuron_unavailable.py"):
        (only / name).symlink_to(vendor_folder / name)
    text = WALK.format(ascend=ascend, vendor=str(only), real=str(real))
    seen, failed, dtype = json.loads(run_with(text, only, real).splitlines()[-1].lstrip("@"))
    assert not failed and seen > 100
    assert dtype == ("torch.int16" if ascend else "torch.int32")


REFERENCES = """
import importlib.util, json, sys
import torch
# Upstream decorates one reference with it; the compiler's import takes longer than all the rest.
torch.compile = lambda function: function
import tile_kernels, tilelang
assert tile_kernels.__file__.startswith({vendor!r}) and tilelang.__file__.startswith({vendor!r})
found = []
for name in ("cast", "engram", "mhc", "moe", "norm", "reduce_fused", "rope", "swiglu", "topk"):
    spec = importlib.util.spec_from_file_location("upstream_" + name, {real!r} + "/tile_kernels/torch/" + name + ".py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found.append(name)
    if name == "cast":
        x = torch.randn(8, 64)
        for options in ({{}}, dict(round_sf=True, use_packed_ue8m0=True, use_tma_aligned_col_major_sf=True)):
            theirs, ours = module.cast(x, "e4m3", (1, 32), **options), tile_kernels.torch.cast(x, "e4m3", (1, 32), **options)
            for a, b in zip(theirs, ours):
                assert a.stride() == b.stride() and a.dtype == b.dtype
                assert torch.equal(*(one.clone(memory_format=torch.contiguous_format).view(torch.uint8) for one in (a, b)))
            assert torch.equal(module.cast_back(theirs, "fp32", (1, 32)), tile_kernels.torch.cast_back(ours, "fp32", (1, 32)))
print("@" + json.dumps(found))
"""


def test_the_real_references_import_on_the_emitted_packages(
    run_with: Callable[..., str], source_root: Callable[[str], Path], vendor_folder: Path
) -> None:
    text = REFERENCES.format(vendor=str(vendor_folder), real=str(source_root("tile_kernels")))
    assert len(json.loads(run_with(text, vendor_folder).splitlines()[-1].lstrip("@"))) == 9


ENGINE = """
import dataclasses, importlib, json, os, sys, types
import torch
import tilelang, tile_kernels
assert tilelang.__file__.startswith({vendor!r}) and tile_kernels.__file__.startswith({vendor!r})
platform = importlib.import_module("deepinfer.platform")

class Here(platform.Platform):
    enum = platform.PlatformEnum.NPU
    tilelang_ops_backend = "neuron"
    distributed_backend = "gloo"
    fp8_sf_type = torch.int16

here = Here()
platform.get_platform = lambda: here
engine = types.ModuleType("deepinfer._C.engine")
for name in ("LogitsTransformInputs", "SamplingKernelInputs", "DecodeSamplingInputs", "DriverSamplingInputs", "PrefillSamplingInputs",
             "PromptLogprobInputs", "SamplerInputs", "SpeculativeSamplingInputs"):
    setattr(engine, name, dataclasses.make_dataclass(name, ()))
package = types.ModuleType("deepinfer._C")
package.__path__, package.engine = [], engine
sys.modules.update({{"deepinfer._C": package, "deepinfer._C.engine": engine}})
ops = "deepinfer.model_executor.layers.tilelang_ops"
backend = types.ModuleType(ops + ".neuron")
backend.__path__ = [{backend!r}]
sys.modules[backend.__name__] = backend
folder = os.path.join({engine!r}, *ops.split("."))
seen, failed = [], []
for file in sorted(os.listdir(folder)):
    name = file.removesuffix(".py")
    if file.endswith(".py") and name not in ("__init__", "conftest"):
        try:
            importlib.import_module(ops + "." + name)
            seen.append(name)
        except Exception as error:
            failed.append([name, type(error).__name__ + ": " + str(error)[:200]])
print("@" + json.dumps([seen, failed]))
"""


def test_every_interface_module_of_the_engine_imports(
    run_with: Callable[..., str], source_root: Callable[[str], Path], vendor_folder: Path
) -> None:
    root = Path(__file__).resolve().parents[3]
    engine = source_root("deepinfer")
    text = ENGINE.format(
        vendor=str(vendor_folder), engine=str(engine), backend=str(root / "overrides" / "tilelang_ops")
    )
    seen, failed = json.loads(
        run_with(text, vendor_folder, engine, root / "overrides" / "shared").splitlines()[-1].lstrip("@")
    )
    assert not failed, failed
    assert len(seen) >= 25
