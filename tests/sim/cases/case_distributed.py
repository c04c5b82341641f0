"""The backend ``neuron`` of torch.distributed, on two spawned processes."""

from __future__ import annotations

import socket
import tempfile
import traceback
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from porter import sim

D = "neuron"


def _all_reduce(rank):
    t = torch.full((3,), rank + 1.0, device=D)
    dist.all_reduce(t)
    assert t.tolist() == [3, 3, 3]
    work = dist.all_reduce(t, async_op=True)
    work.wait()
    assert t.tolist() == [6, 6, 6]
    dist.all_reduce(t, op=dist.ReduceOp.MAX)


def _all_gather(rank):
    o = torch.empty(4, device=D)
    dist.all_gather_into_tensor(o, torch.full((2,), float(rank), device=D))
    assert o.tolist() == [0, 0, 1, 1]
    parts = [torch.empty(2, device=D) for _ in range(2)]
    dist.all_gather(parts, torch.full((2,), float(rank), device=D))
    assert parts[1].tolist() == [1, 1]


def _reduce_scatter(rank):
    o = torch.empty(2, device=D)
    dist.reduce_scatter_tensor(o, torch.arange(4.0, device=D))
    assert o.tolist() == [4.0 * rank, 4.0 * rank + 2]


def _all_to_all(rank):
    o = torch.empty(4, device=D)
    dist.all_to_all_single(o, torch.arange(4.0, device=D) + 10 * rank)
    assert o.tolist() == [2 * rank, 2 * rank + 1, 10 + 2 * rank, 11 + 2 * rank]


def _uneven_all_to_all(rank):
    splits = [1, 2] if rank == 0 else [2, 1]
    with pytest.raises(NotImplementedError, match="equal splits"):
        dist.all_to_all_single(torch.empty(3, device=D), torch.arange(3.0, device=D), splits, splits)


def _integer_reductions(rank):
    for name in ("int32", "int64"):
        with pytest.raises(RuntimeError, match="NCC_EVRF061"):
            dist.all_reduce(torch.ones(2, dtype=getattr(torch, name), device=D))
    with pytest.raises(RuntimeError, match="NCC_EVRF063"):
        dist.reduce_scatter_tensor(
            torch.ones(1, dtype=torch.int32, device=D), torch.ones(2, dtype=torch.int32, device=D)
        )
    with pytest.raises(RuntimeError, match="PRODUCT"):
        dist.reduce_scatter_tensor(torch.ones(1, device=D), torch.ones(2, device=D), op=dist.ReduceOp.PRODUCT)


def _broadcast_and_groups(rank):
    t = torch.full((2,), float(rank), device=D)
    dist.broadcast(t, 1)
    assert t.tolist() == [1, 1]
    dist.barrier()
    group = dist.new_group([0, 1])
    one = torch.ones(1, device=D)
    dist.all_reduce(one, group=group)
    assert one.item() == 2


def _objects(rank):
    found = [None, None]
    dist.all_gather_object(found, {"rank": rank})
    assert found == [{"rank": 0}, {"rank": 1}]


def _point_to_point(rank):
    t = torch.full((2,), float(rank), device=D)
    dist.send(t, 1) if rank == 0 else dist.recv(t, 0)
    assert t.tolist() == [0, 0]


def _findings(rank):
    splits = [1, 2] if rank == 0 else [2, 1]
    x, i = torch.arange(3.0, device=D), torch.ones(2, dtype=torch.int32, device=D)
    o, p = torch.empty(3, device=D), torch.ones(1, dtype=torch.int32, device=D)
    with sim.record(roots=[__file__]) as recording:
        with pytest.raises(NotImplementedError):
            dist.all_to_all_single(o, x, splits, splits)  # expect SIM109
        with pytest.raises(RuntimeError):
            dist.all_reduce(i)  # expect NCC_EVRF061
        with pytest.raises(RuntimeError):
            dist.reduce_scatter_tensor(p, i)  # expect NCC_EVRF063
        dist.send(x, 1) if rank == 0 else dist.recv(x, 0)  # expect SIM111
        dist.all_reduce(x)
    lines = Path(__file__).read_text().splitlines()
    told = [(one.code, lines[one.line - 1].partition("# expect ")[2]) for one in recording.findings]
    assert [code for code, _ in told] == ["SIM109", "NCC_EVRF061", "NCC_EVRF063", "SIM111"], told
    assert all(code == expected for code, expected in told), told
    assert (recording.cost.collectives, recording.cost.collective_bytes) == (1, 12)


def _late_group(rank):
    with sim.record() as recording:
        dist.new_group([0, 1])  # expect SIM112
    lines = Path(__file__).read_text().splitlines()
    told = {(one.code, lines[one.line - 1].partition("# expect ")[2]) for one in recording.findings}
    assert ("SIM112", "SIM112") in told, told


def _functional(rank):
    assert functional.all_reduce(torch.ones(2, device=D), "sum", dist.group.WORLD).tolist() == [2, 2]
    r = functional.all_gather_tensor(torch.full((1,), float(rank), device=D), 0, dist.group.WORLD)
    assert r.tolist() == [0, 1]


def _mesh(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh(D, (2,), mesh_dim_names=("tp",))
    one = torch.ones(1, device=D)
    dist.all_reduce(one, group=mesh["tp"].get_group())
    assert one.item() == 2
    d = distribute_tensor(torch.arange(8.0).view(4, 2), mesh, [Shard(0)])
    assert torch.equal((d * 2).full_tensor().cpu(), torch.arange(8.0).view(4, 2) * 2)


def _bytes_of_float8(rank):
    x = torch.full((2,), float(rank + 1), device=D).to(torch.float8_e4m3fn)
    o = torch.empty(4, dtype=torch.uint8, device=D)
    dist.all_gather_into_tensor(o, x.view(torch.uint8))
    assert o.view(torch.float8_e4m3fn).float().tolist() == [1, 1, 2, 2]


def _compiled(rank):
    def f(x):
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    c = torch.compile(f, backend=D, dynamic=False, fullgraph=True)
    assert c(torch.ones(2, device=D)).tolist() == [5, 5]


CASES = (
    _all_reduce, _all_gather, _reduce_scatter, _all_to_all, _uneven_all_to_all, _integer_reductions, _broadcast_and_groups,
    _objects, _point_to_point, _functional, _mesh, _findings, _late_group, _bytes_of_float8, _compiled,
)  # fmt: skip


def _rank(rank: int, backend: str, port: int, folder: str) -> None:
    sim.install()
    dist.init_process_group(backend, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    for case in CASES:
        try:
            case(rank)
            text = ""
        except Exception:
            text = traceback.format_exc()
        (Path(folder) / f"{case.__name__}-{rank}").write_text(text)
    dist.destroy_process_group()


@pytest.fixture(scope="module", params=["neuron", "cpu:gloo,neuron:neuron"])
def results(request):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(_rank, (request.param, port, folder), nprocs=2)
        yield {path.name: path.read_text() for path in Path(folder).iterdir()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__.strip("_"))
def test_collective(results, case) -> None:
    for rank in (0, 1):
        assert results[f"{case.__name__}-{rank}"] == ""


def test_one_core_a_process() -> None:
    assert torch.neuron.device_count() == 2
    with pytest.raises(RuntimeError, match="exactly one"):
        dist.init_process_group(D, init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
