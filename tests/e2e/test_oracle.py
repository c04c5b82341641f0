"""The engine against an implementation that somebody else wrote, and whether that comparison notices what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from porter.config import load_config
from porter.e2e import api, comparison, environment
from porter.e2e.errors import OracleError
from porter.e2e.oracle import EXACT, RELEASED, Oracle
from tests.e2e.conftest import ROOT

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def report() -> api.Report:
    """The whole comparison."""
    return api.verify(load_config(ROOT / "porter.toml"))


@pytest.fixture(scope="module")
def oracle(model: Path) -> Iterator[Oracle]:
    with Oracle(environment.prepare(), model) as running:
        yield running


def test_the_oracle_is_never_imported_here() -> None:
    code = "import sys, porter.e2e.api, porter.e2e.command; print([n for n in sys.modules if n.startswith('nemo')])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_its_environment_holds_torch_and_nothing_else_of_ours() -> None:
    python = environment.prepare()
    code = (
        "import importlib.util as u, json; "
        "print(json.dumps([n for n in ('torch', 'nemo_automodel', 'tile_kernels', 'tilelang', 'porter') if u.find_spec(n)]))"
    )
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([python, "-c", code], cwd="/", env=kept, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["torch", "nemo_automodel"]
    assert environment.prepare() == python


def test_every_clear_token_is_the_oracles(report: api.Report) -> None:
    assert report.released.positions == report.plain.positions == 64 * 32
    for tokens in (report.plain, report.released):
        above = [each for each in tokens.disagreements if each.margin > tokens.noise]
        assert not above, api.render(report)
    assert report.released.clear >= api.CLEAR_SHARE


def test_every_module_agrees_on_the_engines_own_input(report: api.Report) -> None:
    assert report.diverging is None, api.render(report)
    for start, length, modules in report.recorded:
        assert length > start, "decoded tokens are among them"
        names = {module.name for module in modules}
        assert {"1.engram", "1.index", "3.index", "4.index", "final", "logits"} <= names | {"logits"}
        assert {f"{layer}.{part}.out" for layer in range(6) for part in ("attn", "ffn")} <= names
        assert all(module.rows == length for module in modules)


def test_a_wrong_oracle_is_noticed_whatever_is_wrong(report: api.Report) -> None:
    assert len(report.faults) >= 16
    assert not [fault.name for fault in report.faults if not fault.noticed]
    first = {fault.name: fault.module for fault in report.faults}
    assert first["n-gram memory left out"] == "1.engram"
    assert first["two experts of layer 2 swapped"] == "2.ffn.out"
    assert first["shared expert of layer 3 left out"] == "3.ffn.out"
    assert first["output groups of layer 4 swapped"] == "4.attn.out"
    assert first["attention sinks left out"] == "0.attn.out"
    assert first["rotary frequencies without YaRN"] in ("1.attn.out", "1.index")
    assert first["candidate blocks ignored"] == "4.index"
    assert sum(fault.tokens for fault in report.faults) > len(report.faults), "tokens change as well"


def test_a_broken_oracle_is_whole_again_afterwards(oracle: Oracle) -> None:
    sequence, right = [0, *range(40, 90)], None
    for fault in (None, *oracle.faults, None):
        (logits,) = oracle.logits(RELEASED, [sequence], [0], fault)
        if fault is None:
            assert right is None or torch.equal(logits, right)
            right = logits


def test_rounding_activations_is_no_empty_gesture(oracle: Oracle) -> None:
    sequence = [0, *range(100, 150)]
    exact, released = (oracle.logits(form, [sequence], [0])[0] for form in (EXACT, RELEASED))
    assert exact.shape == (51, 512) and not torch.equal(exact, released)


def test_an_oracle_that_cannot_start_shows_why(tmp_path: Path) -> None:
    with pytest.raises(OracleError, match="config.json"), Oracle(environment.prepare(), tmp_path) as oracle:
        oracle.logits(RELEASED, [[0, 5]], [0])


def test_a_report_says_what_differs_and_fails(tmp_path: Path) -> None:
    right = torch.tensor([[0.0, 9.0, 5.0], [3.0, 2.9, 0.0]])
    other = torch.tensor([[0.0, 9.0, 5.2], [3.0, 2.7, 0.0]])
    near = comparison.tokens([[1, 1]], [right], [other])
    assert near.passed and near.noise == pytest.approx(0.2, abs=1e-6) and near.clear == 0.5
    (within,) = near.disagreements
    assert (within.step, within.engine, within.oracle) == (1, 1, 0)
    far = comparison.tokens([[2, 0]], [right], [other])
    assert not far.passed and far.disagreements[0].margin == pytest.approx(4.0)
    module = comparison.Module("3.attn.out", 10, 0.5, 0.4, 7)
    failed = api.Report(1, 2, near, far, ((2, 4, (module,)),), ())
    assert failed.exit_code == 1 and failed.diverging == module
    text = api.render(failed)
    assert "FIRST MODULE THAT DIVERGES: 3.attn.out" in text and "ABOVE the noise" in text and "FAILED" in text
    api.write(failed, tmp_path / "report.json")
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["passed"] is False and content["released"]["disagreements"][0]["engine"] == 2


def test_a_choice_of_entries_may_differ_at_ties_alone() -> None:
    scores = torch.arange(20.0).repeat(3, 1)
    scores[:, 9] = scores[:, 10] - 1e-3
    scores[2, 15:] = -torch.inf
    rows = {"1.index": torch.arange(10, 20).repeat(3, 1)}
    rows["1.index"][2] = torch.arange(5, 15)
    oracle = {"1.index.scores": scores}

    def worst() -> comparison.Module:
        (found,) = comparison.modules(rows, oracle)
        return found

    assert worst().worst == 0
    rows["1.index"][0, 0] = 9  # a tie
    assert 0 < worst().worst < comparison.ROW_LIMIT
    rows["1.index"][0, 0] = 3
    assert worst().worst > comparison.ROW_LIMIT and not worst().passed
    rows["1.index"][0, 0] = -1  # one too few
    assert worst().worst == float("inf")
    rows["1.index"][0, 0] = 10
    rows["1.index"][2, 0] = 17  # not there yet
    assert worst().worst == float("inf")


def test_a_module_that_gives_no_number_diverges() -> None:
    right = torch.ones(4, 8)
    wrong = right.clone()
    wrong[2, 3] = torch.nan
    (found,) = comparison.modules({"0.ffn.out": wrong}, {"0.ffn.out": right})
    assert found.worst == float("inf") and found.at == 2 and not found.passed
