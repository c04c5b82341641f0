"""torch.distributed on both targets: backend names, dtypes that gloo refuses, integer reductions."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from tests.platform.conftest import Run


@pytest.fixture
def collectives(deep_cluster: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.delenv("DEEPINFER_ACCELERATOR")
    return importlib.import_module("deepinfer.neuron_ops.transfer_to_neuron.collectives")  # type: ignore[return-value]


class Device:
    target, distributed = "neuron", "neuron"

    @staticmethod
    def map_device_type(value: str) -> str:
        return "neuron" if value == "cuda" else value


class Host:
    target, distributed = "cpu", "gloo"

    @staticmethod
    def map_device_type(value: str) -> str:
        return "cpu" if value == "cuda" else value


@pytest.mark.parametrize(
    ("text", "device", "host"),
    [
        ("nccl", "neuron", "gloo"),
        ("NCCL", "neuron", "gloo"),
        ("neuron", "neuron", "neuron"),
        ("gloo", "gloo", "gloo"),
        ("cpu:gloo,cuda:nccl", "cpu:gloo,neuron:neuron", "cpu:gloo"),
        ("cuda:nccl", "neuron:neuron", "cpu:gloo"),
        ("cpu:gloo, cuda:nccl", "cpu:gloo,neuron:neuron", "cpu:gloo"),
        ("cpu:gloo,neuron:neuron", "cpu:gloo,neuron:neuron", "cpu:gloo,neuron:neuron"),
        ("mpi", "mpi", "mpi"),
        (None, None, None),
    ],
)
def test_backend_strings(collectives: ModuleType, text: str | None, device: str | None, host: str | None) -> None:
    assert collectives.map_backend(text, Device) == device
    assert collectives.map_backend(text, Host) == host


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (0, 4)])
@pytest.mark.parametrize("dtype", [torch.int16, torch.uint16, torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.uint64])
def test_bytes_share_memory_and_keep_the_first_dimension(
    collectives: ModuleType, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    tensor = torch.zeros(shape, dtype=torch.uint8).to(dtype) if shape else torch.tensor(0, dtype=torch.uint8).to(dtype)
    view = collectives._carried(tensor)
    assert view.dtype == torch.uint8 and view.data_ptr() == tensor.data_ptr()
    assert view.shape == (*shape, tensor.element_size())


def test_what_gloo_carries_is_left_alone(collectives: ModuleType) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.int64, torch.int8, torch.bool, torch.uint8):
        tensor = torch.zeros(2).to(dtype)
        assert collectives._carried(tensor) is tensor


RANKS = r"""
import os, sys
import torch, torch.multiprocessing as mp

def work(rank, size, port, device):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    if device == "neuron":
        import tests.platform.support.stand_in_device as stand_in
        stand_in.register_backend()
    import deepinfer
    platform = deepinfer.PLATFORM
    import torch.distributed as dist
    dist.init_process_group(backend="gloo", rank=rank, world_size=size)
    group = dist.new_group([0, 1], backend=platform.distributed_backend, pg_options=platform.get_distributed_options())
    here = torch.zeros(1, device="cuda").device
    assert here.type == device, here

    # movement of what no backend carries: not one bit changes
    for dtype in (torch.int16, torch.float8_e4m3fn, torch.uint16, torch.float8_e8m0fnu):
        mine = torch.randint(0, 256, (3, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(rank))
        value = mine.view(dtype).to(here) if dtype.itemsize == 1 else mine.view(torch.int16).view(dtype).to(here)
        out = torch.empty(size * value.shape[0], value.shape[1], dtype=dtype, device="cuda")
        dist.all_gather_into_tensor(out, value, group=group)
        for other in range(size):
            theirs = torch.randint(0, 256, (3, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(other))
            assert torch.equal(out[3 * other : 3 * other + 3].cpu().contiguous().view(torch.uint8), theirs)
        sent = value.clone()
        dist.broadcast(sent, src=1, group=group)
        assert torch.equal(sent.cpu().view(torch.uint8), torch.randint(0, 256, (3, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)))

    # reductions of integers
    for dtype in (torch.int32, torch.int64, torch.int16):
        total = torch.tensor([rank + 1, 2**14], dtype=dtype, device="cuda")
        dist.all_reduce(total, group=group)
        assert total.dtype == dtype and total.device == here and total.tolist()[0] == 3, total
    votes = torch.tensor([rank], dtype=torch.int32, device="cuda")
    handle = dist.all_reduce(votes, op=dist.ReduceOp.MIN, group=group, async_op=True)
    handle.wait()
    assert votes.item() == 0
    mean = torch.full((2,), float(rank), device="cuda")
    dist.all_reduce(mean, group=group)
    assert mean.tolist() == [1.0, 1.0]

    # host values on the device's group
    host = torch.tensor([rank + 5])
    dist.all_reduce(host, op=dist.ReduceOp.MAX, group=group)
    assert host.item() == 6
    dist.barrier()
    dist.destroy_process_group()
    os.write(1, f"rank {rank} done\n".encode())

if __name__ == "__main__":
    mp.spawn(work, args=(2, int(sys.argv[1]), sys.argv[2]), nprocs=2)
"""


@pytest.mark.parametrize("device", ["cpu", "neuron"])
def test_two_ranks(device: str, run: Run, tmp_path) -> None:  # type: ignore[no-untyped-def]
    import socket

    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    done = run(
        f"import runpy, sys; sys.argv = [{str(script)!r}, '{port}', {device!r}]; runpy.run_path({str(script)!r}, run_name='__main__')",
        device=device,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(done.stdout.split("\n")) == ["", "rank 0 done", "rank 1 done"]
