"""The emitted ``deep_ep`` alone, and in the engine's MoE layer with the emitted packages around it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tile_kernels"))
from emitted_packages import emitted

HERE = Path(__file__).resolve().parent
ALONE = """
import deep_ep, flash_mla, torch
from deep_ep import BucketBuffer, BucketSession, EngramBuffer, EPBuffer, EPHandle, EventHandle, EventOverlap
from flash_mla import flash_mla_sparse_fwd, flash_mla_with_kvcache, fused_norm_rope_attn_rope_cast
from flash_mla.flash_mla_interface import FlashMLASchedMeta

buffer = EPBuffer(None, num_max_tokens_per_rank=4, hidden=64, num_topk=2)
x = torch.randn(4, 64).to(torch.bfloat16)
rows, _, _, handle, event = buffer.dispatch(x, torch.tensor([[0, 1], [1, 2], [3, -1], [-1, -1]]), num_experts=4, do_expand=True)
assert isinstance(handle, EPHandle) and isinstance(event, EventOverlap) and isinstance(buffer.capture(), EventHandle)
assert torch.equal(buffer.combine(rows, handle)[0], torch.stack((2 * x[0], 2 * x[1], x[2], 0 * x[3])))
out, _, _ = flash_mla_sparse_fwd(x.view(4, 1, 64), x.view(4, 1, 64), torch.arange(4, dtype=torch.int32).view(4, 1, 1), 0.1, 64)
assert torch.equal(out, x.view(4, 1, 64))
for wrong in (lambda: EPBuffer.lb_reduce_grads(*[None] * 4), lambda: BucketBuffer(None, 0), lambda: deep_ep.init_jit()):
    try:
        wrong()
    except NotImplementedError as error:
        assert str(error).endswith("not supported on Neuron (basic mode)"), error
    else:
        raise AssertionError("not refused")
print("done", deep_ep.get_physical_domain_size(None), deep_ep.get_num_rdma_alignment())
"""


@pytest.fixture(scope="module")
def packages() -> Path:
    return emitted(("deep_ep", "deep_gemm", "flash_mla", "tile_kernels", "tilelang"))


def test_alone(packages: Path) -> None:
    run = subprocess.run([sys.executable, "-c", ALONE], cwd=packages, capture_output=True, text=True)
    assert run.returncode == 0 and run.stdout == "done (1, 1) 64\n", run.stdout + run.stderr


def test_moe_layer(packages: Path) -> None:
    run = subprocess.run([sys.executable, HERE / "deep_ep_moe.py", packages, "2"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    # With and without a CPU sync agree bit for bit; the reference rounds sums to bf16 once where the layer does twice.
    found = re.findall(r"rank (\d) same True difference (\d\.\d+e[-+]\d\d)", run.stdout)
    assert sorted(rank for rank, _ in found) == ["0", "1"], run.stdout
    assert all(float(difference) < 1e-5 for _, difference in found), run.stdout
