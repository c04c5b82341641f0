"""The cost model counts what is dispatched, and its times follow from the table."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from porter import sim
from porter.sim.costs import touched

D = "neuron"
RATES = sim.Rates()


def _x():
    return torch.ones(4, 8).to(D)


def test_operators_and_bytes() -> None:
    x = _x()
    with sim.record() as r:
        y = x + 1
        y.mul_(2)
        y.view(8, 4).t()[1:, :2]
    cost = r.cost
    assert cost.operators == 2 and cost.by_operator == {"add": 1, "mul": 1}
    assert (cost.bytes_read, cost.bytes_written) == (2 * 128, 2 * 128)
    assert cost.estimated_us == pytest.approx(2 * RATES.dispatch_us)
    assert cost.round_trips == 0


@pytest.mark.parametrize(
    ("make", "operators"),
    [
        (lambda x: torch.zeros(4, device=D), 1),
        (lambda x: torch.empty(4, device=D), 0),
        (lambda x: x.clone(), 1),
        (lambda x: x.to(torch.bfloat16), 1),
        (lambda x: x.contiguous(), 0),
        (lambda x: x.t().contiguous(), 1),
        (lambda x: torch.cat([x, x]), 1),
        (lambda x: x[1:3].copy_(x[:2]), 1),
        (lambda x: torch.softmax(x, -1), 1),
        (lambda x: x @ x.t(), 1),
        (lambda x: torch.nn.functional.linear(x, x), 1),
        (lambda x: torch.where(x > 0, x, 0.0), 3),  # the number is made on the device
    ],
)
def test_dispatches(make, operators: int) -> None:
    x = _x()
    with sim.record() as r:
        make(x)
    assert r.cost.operators == operators, r.cost.by_operator


def test_products_take_their_arithmetic() -> None:
    n = 512
    x = torch.ones(n, n, device=D)
    rates = sim.rates_from({"dispatch_us": 1e-6, "fp32_flops_per_us": 1.0, "bf16_flops_per_us": 2.0})
    with sim.record(rates=rates) as r:
        x @ x
    assert r.cost.flops == 2 * n**3 and r.cost.estimated_us == pytest.approx(2 * n**3)
    half = x.bfloat16()
    with sim.record(rates=rates) as r:
        half @ half
    assert r.cost.estimated_us == pytest.approx(n**3)
    with sim.record() as r:
        torch.bmm(half[None].expand(3, n, n), half[None].expand(3, n, n))
    assert r.cost.flops == 6 * n**3


def test_memory_time_beats_the_floor_for_large_tensors() -> None:
    x = torch.empty(1 << 26, dtype=torch.uint8, device=D)
    with sim.record() as r:
        x.clone()
    assert r.cost.estimated_us == pytest.approx(2 * (1 << 26) / RATES.memory_bytes_per_us)
    assert r.cost.estimated_us > RATES.dispatch_us


def test_reads_and_writes_by_row_cost_their_rows() -> None:
    cache = torch.zeros(1000, 16, device=D)
    slots = torch.tensor([3, 5], dtype=torch.int32).to(D)
    rows = torch.ones(2, 16).to(D)
    with sim.record() as r:
        cache.index_put_((slots,), rows)
    assert r.cost.bytes_written == 128 and r.cost.bytes_read == 128 + 8
    with sim.record() as r:
        cache.index_select(0, slots)
    assert (r.cost.bytes_read, r.cost.bytes_written) == (128 + 8, 128)
    with sim.record() as r:
        cache[:, 3] = 1.0
    assert r.cost.bytes_written >= 64000


def test_broadcast_dimensions_are_read_once() -> None:
    assert touched(torch.ones(1, 8).expand(1000, 8)) == 32
    assert touched(torch.ones(4, 8)) == 128


def test_host_round_trips() -> None:
    x = _x()
    with sim.record() as r:
        x.sum().item()
        x.cpu()
        torch.ones(3).to(D)
    cost = r.cost
    # The value is read; one copy each way.
    assert (cost.host_reads, cost.uploads, cost.round_trips) == (2, 1, 3)
    assert cost.estimated_us == pytest.approx(3 * RATES.round_trip_us + cost.operators * RATES.dispatch_us)


def test_fallbacks_and_wide_casts_go_by_the_host() -> None:
    x = _x()
    with sim.record() as r:
        torch.exp2(x)
    assert r.cost.fallbacks == 1 and r.cost.estimated_us > RATES.round_trip_us
    with sim.record() as r:
        x.to(torch.int64)
    assert r.cost.bounces == 1 and r.cost.estimated_us > RATES.round_trip_us


def test_a_compiled_graph_is_one_launch() -> None:
    def f(x):
        return torch.relu(x @ x.t()) + 1

    x = _x()
    c = torch.compile(f, backend=D, dynamic=False)
    c(x)
    with sim.record() as eager:
        f(x)
    with sim.record() as r:
        c(x)
    assert (r.cost.operators, r.cost.launches, r.cost.compiled, r.graphs) == (0, 1, 3, 0)
    assert (r.cost.bytes_read, r.cost.bytes_written) == (128, 64)
    assert r.cost.estimated_us == pytest.approx(RATES.dispatch_us)
    assert eager.cost.operators == 3 and eager.cost.estimated_us == pytest.approx(3 * RATES.dispatch_us)


def test_recordings_nest_and_add() -> None:
    x = _x()
    with sim.record() as outer:
        x + 1
        with sim.record() as inner:
            x * 2
    assert (outer.cost.operators, inner.cost.operators) == (2, 1)
    total = outer.cost + inner.cost
    assert total.operators == 3 and total.by_operator == {"add": 1, "mul": 2}


def test_nothing_is_counted_outside() -> None:
    x = _x()
    with sim.record() as r:
        pass
    x + 1
    assert r.cost.operators == 0


def test_it_says_that_it_is_an_estimate() -> None:
    with sim.record() as r:
        _x()
    assert "estimate" in r.render() and r.to_dict()["cost"]["basis"] == sim.ESTIMATE
    assert "estimated_us" in r.cost.to_dict() and "estimate" in sim.ESTIMATE


def test_the_table_is_complete_and_sourced() -> None:
    assert {one.name: one.value for one in sim.TABLE} == {
        name: getattr(RATES, name) for name in RATES.__dataclass_fields__
    }
    assert all(one.source and one.unit and one.meaning for one in sim.TABLE)


def test_rates_can_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "rates.toml"
    path.write_text("dispatch_us = 5\n")
    x = _x()
    with sim.record(rates=sim.read_rates(path)) as r:
        x + 1
    assert r.cost.estimated_us == 5
    other = tmp_path / "rates.json"
    other.write_text('{"dispatch_us": 7.5}')
    assert sim.read_rates(other).dispatch_us == 7.5
    for wrong in ("speed = 1\n", "dispatch_us = 0\n", "dispatch_us = 'fast'\n", "dispatch_us =\n"):
        path.write_text(wrong)
        with pytest.raises(sim.SimError):
            sim.read_rates(path)


def test_journal_sums_calls() -> None:
    x = _x()
    journal = sim.Journal()
    for n in (1, 3):
        with journal.call("add_tl"):
            for _ in range(n):
                torch.exp2(x)
    with pytest.raises(ZeroDivisionError), journal.call("broken_tl"):
        raise ZeroDivisionError
    entry = journal.entries["add_tl"]
    assert entry.calls == 2 and entry.cost.operators == 4 and entry.worst.operators == 3
    assert list(entry.findings.values()) == [4]
    data = journal.to_dict()
    assert list(data) == ["add_tl", "broken_tl"] and data["add_tl"]["operators_a_call"] == 2
    assert "SIM104" in journal.render() and "estimate" in journal.render()


def test_operators_with_a_kernel_of_their_own_are_not_composed() -> None:
    x, ends = torch.ones(4, 8, dtype=torch.bfloat16, device=D), torch.tensor([1, 4], dtype=torch.int32).to(D)
    weights = torch.ones(2, 8, 8, dtype=torch.bfloat16, device=D)
    with sim.record() as recording:
        torch.nn.functional.pad(x, (1, 2))
        x.repeat(2, 2)
        x.masked_fill(x > 0, 2.0)
        torch._grouped_mm(x, weights, ends)
    expected = {"constant_pad_nd": 1, "repeat": 1, "gt": 1, "masked_fill": 1, "_grouped_mm": 1}
    assert dict(recording.cost.by_operator) == expected and recording.cost.round_trips == 0
