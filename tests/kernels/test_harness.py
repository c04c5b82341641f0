"""The harness refuses kernels that do what it exists to catch."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import pytest
import torch
from harness import (
    Kernel,
    Work,
    check_fake,
    check_fullgraph,
    check_kernel,
    check_mutations,
    clone_args,
    count_ops,
    exported_mutations,
    guard,
    new_bytes,
    run_guarded,
    storage_bytes,
    wide_ops,
    work,
)


def good(x: torch.Tensor, y: torch.Tensor) -> None:
    y.copy_(x * 2)


def returns_a_value(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return y.copy_(x * 2)


def writes_its_input(x: torch.Tensor, y: torch.Tensor) -> None:
    y.copy_(x.mul_(2))


def writes_the_gap(x: torch.Tensor, y: torch.Tensor) -> None:
    y.as_strided((y.shape[0], y.stride(0)), (y.stride(0), 1)).zero_()


def rebinds_its_storage(x: torch.Tensor, y: torch.Tensor) -> None:
    y.set_(x * 2)


def reads_on_the_host(x: torch.Tensor, y: torch.Tensor) -> None:
    y.copy_(x * float(x.sum().item()))


def shape_depends_on_data(x: torch.Tensor, y: torch.Tensor) -> None:
    y.copy_(x[x > 0].sum())


def breaks_the_graph(x: torch.Tensor, y: torch.Tensor) -> None:
    torch._dynamo.graph_break()
    y.copy_(x * 2)


def arguments() -> tuple[torch.Tensor, torch.Tensor]:
    return guard(torch.ones(3, 4)), guard(torch.zeros(3, 4), (6, 1))


def test_good_kernel_passes_and_its_results_stay() -> None:
    x, y = arguments()
    check_kernel(good, x, y, written=("y",))
    assert torch.equal(y, torch.full((3, 4), 2.0))


@pytest.mark.parametrize(
    "kernel, message",
    [
        (returns_a_value, "returns None"),
        (writes_its_input, "x: 24 bytes"),
        (writes_the_gap, "y: 24 bytes"),
        (rebinds_its_storage, "y: shape, strides"),
    ],
)
def test_run_guarded_refuses(kernel: Callable[..., Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        run_guarded(kernel, *arguments(), written=("y",))


def test_a_name_that_is_no_argument_is_refused() -> None:
    with pytest.raises(AssertionError, match="written names"):
        run_guarded(good, *arguments(), written=("z",))


@pytest.mark.parametrize("kernel", [reads_on_the_host, shape_depends_on_data])
def test_fake_gate_refuses(kernel: Callable[..., Any]) -> None:
    with pytest.raises(Exception, match=r"_local_scalar_dense|nonzero"):
        check_fake(kernel, *arguments())


def refuse_a_graph_break() -> None:
    with pytest.raises(Exception, match=r"(?i)graph.break|fullgraph"):
        check_fullgraph(breaks_the_graph, *arguments())


def test_fullgraph_gate_refuses_a_graph_break() -> None:
    # A refused compilation leaves dynamo's frame evaluator in place, under which CPython allows far fewer nested calls:
    # a process of its own keeps that away from the tests that follow.
    process = multiprocessing.get_context("spawn").Process(target=refuse_a_graph_break)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_mutation_gate() -> None:
    assert exported_mutations(good, *arguments()) == {"y"}
    assert exported_mutations(writes_its_input, *arguments()) == {"x", "y"}
    with pytest.raises(AssertionError, match="mutated"):
        check_mutations(writes_its_input, *arguments(), written=("y",))
    with pytest.raises(AssertionError, match="mutated"):
        check_mutations(good, *arguments(), written=("x", "y"))
    check_mutations(good, *arguments(), written=("x", "y"), optional=("x",))


def test_clones_share_what_their_originals_share() -> None:
    whole = torch.arange(8.0)
    left, right = clone_args([whole[:4], whole[2:6:2]])
    left[2] = 70
    assert right.tolist() == [70, 4] and whole[2] == 2 and right.stride() == (2,)


def test_guard_keeps_values_and_pads() -> None:
    tensor = guard(torch.arange(6, dtype=torch.bfloat16).view(2, 3), (5, 1))
    assert tensor.stride() == (5, 1) and tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert storage_bytes(tensor).numel() == (5 + 3) * 2 + 512
    assert guard(torch.empty(0, 3)).shape == (0, 3)


def test_costs() -> None:
    x, y = arguments()
    assert count_ops(good, x, y) == ["aten.mul.Tensor", "aten.copy_.default"]
    assert new_bytes(good, x, y) == 48
    assert wide_ops(good, x, y) == []


def sums_in_64_bits(x: torch.Tensor, y: torch.Tensor) -> None:
    y.copy_((x > 0).sum(1, keepdim=True))


def test_wide_ops_are_found() -> None:
    assert wide_ops(sums_in_64_bits, *arguments()) == ["aten.sum.dim_IntList"]


def test_work_tells_a_kernel_that_looks_at_a_whole_cache() -> None:
    def rows_only(cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> None:
        cache.index_put_((slots,), rows + cache.index_select(0, slots))
        cache[:2].copy_(rows)

    def all_of_it_in_place(cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> None:
        rows_only(cache, rows, slots)
        cache.mul_(1)

    def all_of_it_read(cache: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> None:
        rows.add_(cache.amax())

    def cost(kernel: Kernel, slots: int) -> Work:
        return work(kernel, torch.zeros(slots, 4), torch.ones(2, 4), torch.tensor([3, 1], dtype=torch.int32))

    assert cost(rows_only, 4) == cost(rows_only, 64)
    for kernel in (all_of_it_in_place, all_of_it_read):
        assert cost(kernel, 64).touched - cost(kernel, 4).touched >= 60 * 16
