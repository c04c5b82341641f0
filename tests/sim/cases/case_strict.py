"""Strict mode: every bad kernel is caught with its code and line, no good one is flagged."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import pytest
import torch

from porter import sim
from porter.sim.memory import LEDGER

sys.path.insert(0, str(Path(__file__).parent))
import bad_kernels
import good_kernels

D = "neuron"
_EXPECT = re.compile(r"# expect (?P<codes>.+)$")

_library = torch.library.Library("porter_sim_bad", "FRAGMENT")
_library.define("twice(Tensor x) -> Tensor")
_library.impl("twice", lambda x: x * 2, "CPU")


def _arguments():
    x = (torch.arange(24.0).view(4, 6) - 11.5).to(D)
    return x, torch.tensor([1, 2, 3, 0], dtype=torch.int32).to(D)


def _expected(*functions) -> set[tuple[str, int]]:
    found = set()
    for function in functions:
        lines, first = inspect.getsourcelines(function)
        for offset, line in enumerate(lines):
            if match := _EXPECT.search(line):
                found |= {(code, first + offset) for code in match["codes"].split()}
    return found


# What a line does besides the thing that it is there for.
_BESIDES = {
    "SIM101": {"SIM102"},
    "SIM108": {"SIM105", "SIM101", "SIM102", "SIM104", "SIM103"},
    "SIM102": {"SIM101", "SIM104", "SIM105"},
    "SIM106": {"SIM104"},
    "SIM110": {"SIM105"},
    "NCC_EVRF004": {"SIM104"},
    "NCC_EVRF062": {"SIM105"},
}


@pytest.mark.parametrize("kernel", bad_kernels.KERNELS, ids=lambda one: one.__name__)
def test_bad_kernel_is_caught(kernel) -> None:
    arguments = _arguments()
    functions = (kernel, bad_kernels.helper) if kernel is bad_kernels.syncs_in_a_helper else (kernel,)
    expected = _expected(*functions)
    assert expected
    capacity = LEDGER.capacity
    with sim.record(kernel.__name__) as recording:
        kernel(*arguments)
    assert LEDGER.capacity == capacity
    found = {(one.code, one.line) for one in recording.findings}
    assert expected <= found, recording.render()
    besides = {(other, line) for code, line in expected for other in _BESIDES.get(code, ())}
    assert found <= expected | besides, recording.render()
    for one in recording.findings:
        assert Path(one.path).name == "bad_kernels.py" and one.operator and one.function and one.rewrite and one.title
    assert not recording.allowed


@pytest.mark.parametrize("kernel", bad_kernels.KERNELS, ids=lambda one: one.__name__)
def test_bad_kernel_raises(kernel) -> None:
    arguments = _arguments()
    with sim.record(strict="raise"), pytest.raises(sim.StrictError) as raised:
        kernel(*arguments)
    assert "bad_kernels.py:" in str(raised.value) and raised.value.fix


@pytest.mark.parametrize("kernel", good_kernels.KERNELS, ids=lambda one: one.__name__)
def test_good_kernel_is_not_flagged(kernel) -> None:
    arguments = _arguments()
    with sim.record(kernel.__name__, strict="raise") as recording:
        kernel(*arguments)
    assert not recording.findings, recording.render()
    assert bool(recording.allowed) == ("comment" in kernel.__name__ or "long_statement" in kernel.__name__)


def test_every_code_is_caught_somewhere() -> None:
    """Codes of collectives and of torch.compile have tests of their own."""
    seen = {code for kernel in bad_kernels.KERNELS for code, _ in _expected(kernel)}
    collectives = {"SIM109", "SIM111", "SIM112", "NCC_EVRF061", "NCC_EVRF063"}
    told = Path(__file__).with_name("case_distributed.py").read_text()
    assert all(f"# expect {code}\n" in told for code in collectives)
    here = {"SIM113", "SIM114", "NCC_EMOD025"}
    assert seen | collectives | here == set(sim.CODES)


def test_off_finds_nothing() -> None:
    with sim.record(strict="off") as recording:
        bad_kernels.reads_a_value(*_arguments())
    assert not recording.findings and not recording.allowed and recording.cost.operators


def test_roots_leave_other_code_out() -> None:
    arguments = _arguments()
    with sim.record(roots=[Path(bad_kernels.__file__)]) as recording:
        arguments[0].cpu()
        bad_kernels.syncs_in_a_helper(*arguments)
    assert [one.function for one in recording.findings] == ["helper"]
    assert recording.strict.outside == 1
    with sim.record(roots=[Path(good_kernels.__file__)]) as recording:
        bad_kernels.syncs_in_a_helper(*arguments)
    assert not recording.findings


def test_findings_are_counted() -> None:
    arguments = _arguments()
    with sim.record() as recording:
        for _ in range(3):
            bad_kernels.rounds(*arguments)
    assert [recording.times(one) for one in recording.findings] == [3]
    data = recording.to_dict()
    assert data["findings"][0]["times"] == 3 and data["findings"][0]["code"] == "SIM104"


def test_other_shapes_are_the_same_finding() -> None:
    x = _arguments()[0]
    with sim.record() as recording:
        for n in (2, 3, 4):
            bad_kernels.writes_a_column(x[:n], None)
    assert [(one.code, recording.times(one)) for one in recording.findings] == [("SIM107", 3)]
    assert "(2,)" in recording.findings[0].detail


def test_a_strided_argument_is_the_callers() -> None:
    def kernel(out):
        out.fill_(1.0)
        out[1:3].copy_(out[:2] + 1)
        out[:, 1:3] = 2.0

    first = inspect.getsourcelines(kernel)[1]
    wide = torch.zeros(4, 10).to(D)
    out = wide[:, :6]
    with sim.record(arguments=[1, [out]]) as recording:
        kernel(out)
    assert {(one.code, one.line - first) for one in recording.allowed} == {("SIM113", 1), ("SIM113", 2)}
    assert {(one.code, one.line - first) for one in recording.findings} == {("SIM107", 3)}
    whole = torch.zeros(4, 6).to(D)
    with sim.record(arguments=[whole]) as recording:
        kernel(whole)
    assert {(one.code, one.line - first) for one in recording.findings} == {("SIM107", 3)} and not recording.allowed


def test_the_list_of_operators_can_be_replaced(tmp_path: Path) -> None:
    arguments = _arguments()
    path = tmp_path / "operators.txt"
    path.write_text("# of another SDK\naten::maximum\naten::neg.out\n")
    with sim.record(operators=path) as recording:
        bad_kernels.falls_back(*arguments)
        bad_kernels.rounds(*arguments)
    assert [one.operator.split(".")[0] for one in recording.findings] == ["aten::round"]
    path.write_text("# nothing\n")
    with pytest.raises(sim.SimError, match="no name"), sim.record(operators=path):
        pass


def test_findings_in_compiled_graphs() -> None:
    def f(x):
        y = x * 2
        return torch.exp2(y)

    first = inspect.getsourcelines(f)[1]
    c = torch.compile(f, backend=D, dynamic=False)
    x = _arguments()[0]
    with sim.record() as recording:
        c(x)
    assert [(one.code, one.line, one.compiled) for one in recording.findings] == [("SIM104", first + 2, True)]
    assert recording.graphs == 1


def test_recompilation_and_dynamic_shapes_are_findings() -> None:
    torch._dynamo.reset()

    def double(x):
        return x * 2

    first = inspect.getsourcelines(double)[1]
    c = torch.compile(double, backend=D, dynamic=False)
    with sim.record() as recording:
        c(torch.zeros(2, device=D))
        c(torch.zeros(3, device=D))
    assert [one.code for one in recording.findings] == ["SIM114"] and recording.recompiles == 1
    place = recording.findings[0]
    assert Path(place.path) == Path(__file__) and first <= place.line < first + 9, place
    torch._dynamo.reset()
    c = torch.compile(lambda x: x * 2, backend=D, dynamic=True)
    with sim.record() as recording, pytest.raises(Exception, match="NCC_EMOD025"):
        c(torch.zeros(4, device=D))
    assert [one.code for one in recording.findings] == ["NCC_EMOD025"]


def test_unknown_mode() -> None:
    with pytest.raises(ValueError), sim.record(strict="loud"):
        pass
