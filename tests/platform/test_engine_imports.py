"""DeepInfer imports on a bare machine: the package, its extension, every interface and model module."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.platform.conftest import Run

pytestmark = pytest.mark.engine

OPS = "deepinfer.model_executor.layers.tilelang_ops"
MODELS = "deepinfer.model_executor.models.v4_modules"

SCRIPT = """
import importlib, pkgutil, sys, traceback
import deepinfer
import deepinfer._C
print(deepinfer.PLATFORM)
failed = []
for package, left_out in ((%r, {"conftest"}), (%r, set())):
    module = importlib.import_module(package)
    names = [info.name for info in pkgutil.iter_modules(module.__path__) if not info.ispkg and info.name not in left_out]
    for name in names:
        try:
            importlib.import_module(f"{package}.{name}")
        except Exception:
            failed.append(name)
            traceback.print_exc()
    print(package.split(".")[-1], len(names), sorted(names)[0])
assert not failed, failed
"""


@pytest.mark.parametrize("device", ["cpu", "neuron"])
def test_every_interface_and_model_module_imports(device: str, engine: Path, run: Run) -> None:
    done = run(SCRIPT % (OPS, MODELS), device=device)
    assert done.returncode == 0, done.stderr[-4000:]
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"<PlatformNeuron device={device} ops=neuron")
    assert lines[1:] == ["tilelang_ops 31 cache_common", "v4_modules 23 attn"]


def test_the_samplers_interface_is_among_them(engine: Path, run: Run) -> None:
    done = run(f"""
        from {OPS} import fused_sample, sampler, ops
        from {MODELS}.mhc_ops import default_n_splits
        assert default_n_splits() == 1
        assert ops.fused_sample_tl and ops.norm_tl
        try:
            ops.no_such_kernel_tl
        except AttributeError as error:
            print(type(error).__name__)
    """)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout == "KernelUnavailableError\n"


def test_the_engine_module_imports(engine: Path, run: Run) -> None:
    done = run("""
        import deepinfer.entrypoints.llm, deepinfer.worker.worker, deepinfer.ve.schema, deepinfer.structure_output.matcher
        from deepinfer.utils import bind_cpu, get_idle_cpus, get_distributed_init_method
        from types import SimpleNamespace
        bind_cpu(0)
        assert get_idle_cpus(0) == []
        assert get_distributed_init_method(SimpleNamespace(world_size=1, engine_group_rank=0)).startswith("tcp://127.0.0.1:")
        assert get_distributed_init_method(SimpleNamespace(world_size=2, engine_group_rank=1)) == "tcp://localhost:23284"
        from deepinfer.worker.base import WorkerBase, _bind_numa
        WorkerBase._init_torch(None)
        _bind_numa(0)
        from deep_cluster.hardware import get_bf16_tflops_limit, get_actual_num_gpus
        assert get_bf16_tflops_limit() > 0 and get_actual_num_gpus() == 1
        from deepinfer.utils import forbid_cuda_sync, allow_cuda_sync
        with forbid_cuda_sync(), allow_cuda_sync():
            pass
    """)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Traceback" not in done.stdout + done.stderr


def test_moe_takes_the_ordinary_kernels(engine: Path, run: Run) -> None:
    """use_mega_moe would be True on an NPU with FP4 experts; nothing else may decide it afterwards."""
    done = run(f"""
        import ast, inspect
        from {MODELS} import mlp
        tree = ast.parse(inspect.getsource(mlp.DeepseekMoE))
        writes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "use_mega_moe" and isinstance(node.ctx, ast.Store)]
        assert len(writes) == 2
        from deepinfer import PLATFORM
        lines = inspect.getsource(mlp.DeepseekMoE.__init__).splitlines()
        at = next(i for i, line in enumerate(lines) if line.strip() == "self.use_mega_moe = False")
        assert lines[at - 1].strip() == "if PLATFORM.is_neuron:" and PLATFORM.is_neuron
    """)
    assert done.returncode == 0, done.stderr[-4000:]
