"""The decode step of each batch bucket is one static graph, without a break, a recompilation or a host sync.

What stands in the way of that is listed in graph_blockers.json, by backend: ``file:line function: reason``. The list may shrink, not
grow.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from porter.demo.workspace import Workspace
from porter.e2e import graph
from porter.e2e.graph import Break, Capture

BLOCKERS = Path(__file__).with_name("graph_blockers.json")
LONG = "PORTER_GRAPHS"
# Steps go over a boundary of blocks and of the window (128 tokens).
CONTEXT, STEPS = 125, 6


def known(backend: str) -> Sequence[str]:
    blockers: Mapping[str, Sequence[str]] = json.loads(BLOCKERS.read_text())
    return blockers[backend]


def check(captures: Sequence[Capture], backend: str) -> None:
    """What is found is what is listed; with nothing listed, the step is one graph."""
    print("\n".join(capture.render() for capture in captures))
    found = {f"{one.where}: {one.reason}" for capture in captures for one in capture.blockers()}
    assert found == {*known(backend)}, "graph_blockers.json says something else"
    for capture in captures:
        assert capture.equal and all(capture.equal), "the graph's output or what it wrote to the caches differs"
        assert capture.symbolic == 0
        if not found:
            assert len(capture.graphs) == 1 and capture.recompiles == 0 and capture.syncs == 0


@pytest.mark.engine
def test_each_bucket_is_one_graph(workspace: Workspace, model: Path) -> None:
    cases: Sequence[Mapping[str, Any]] = [
        {"batch": 1, "context": CONTEXT, "backend": "count", "steps": STEPS},
        {"batch": 4, "context": CONTEXT, "backend": "count", "steps": STEPS},
    ]
    check(graph.captures(workspace, model, cases, timeout=1800), "count")


@pytest.mark.engine
@pytest.mark.skipif(
    LONG not in os.environ, reason=f"making a graph of this size functional takes minutes: set {LONG}=1"
)
@pytest.mark.parametrize("backend", ["functional", "neuron"])
def test_the_graph_can_be_made_functional(backend: str, workspace: Workspace, model: Path) -> None:
    case = {"batch": 1, "context": CONTEXT, "backend": backend, "steps": 2}
    check(graph.captures(workspace, model, [case], timeout=3600), "functional")


def test_a_failed_capture_names_the_place_that_stopped_it() -> None:
    error = (
        "Unsupported: no such thing\n  more\n"
        'File "/x/checkout-1/deepinfer/model_executor/models/deepseek.py", line 12, in forward\n'
        'File "/x/checkout-1/deepinfer/model_executor/layers/tilelang_ops/neuron/norm.py", line 7, in norm\n'
        'File "/y/torch/_dynamo/polyfills/__init__.py", line 378, in instantiate\n'
    )
    capture = Capture(1, 8, "count", [3], [1], [False], {Break("deepinfer/a.py:1 f", "why"): 2}, 1, 0, error)
    assert [blocker.where for blocker in capture.blockers()] == [
        "deepinfer/a.py:1 f",
        "deepinfer/model_executor/layers/tilelang_ops/neuron/norm.py:7 norm",
    ]
    assert "2 breaks" in capture.render() and "DIFFERENT" in capture.render() and "1 host syncs" in capture.render()
    assert capture.to_json()["blockers"][1]["reason"] == "Unsupported: no such thing"


def test_views_and_allocations_are_no_work() -> None:
    case = {
        "batch": 1,
        "context": 8,
        "calls": {"a": 2},
        "inside": {
            "a": {"add.Tensor": 3, "view view.default": 5, "memory empty.memory_format": 1},
            "b": {"mm.default": 4},
        },
        "outside": {"cat.default": 2, "view view.default": 9},
        "outside_lines": {"cat.default x.py:1": 2},
    }
    operators = graph.operators(case)
    assert operators.work() == {"b": 4, "a": 3}
    assert (operators.total, operators.views, operators.own) == (7, 6, 2)
