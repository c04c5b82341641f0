"""The decode step as one static graph, and what it is made of: looked at in a running engine.

A step is captured with ``torch.compile(fullgraph=..., dynamic=False)``, as a function of the two tensors that hold all caches and
of the step's metadata, and its output is compared with the eager one. Three backends:

- ``count``: the graph as Dynamo captures it, run as it is;
- ``functional``: that graph made functional by AOT autograd (ATen operators, no writes but those to the caches at the end), as
  device compilers want it;
- ``neuron``: the simulated device's backend, which is ``functional`` and refuses what TorchNeuron refuses.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from porter.demo.workspace import Workspace
from porter.e2e import oneshot

CHILD = Path(__file__).with_name("graph_child.py")
ROOT = Path(__file__).resolve().parents[2]
ARGUMENTS: Mapping[str, Any] = {"max_model_len": 1024, "max_num_seqs": 8, "max_num_batched_tokens": 1024}


@dataclass(frozen=True)
class Break:
    """A place where capture stops. ``where``: ``file:line function``, the file relative to the checkout."""

    where: str
    reason: str


@dataclass(frozen=True)
class Capture:
    """The decode step of one batch bucket, captured.

    ``graphs``: operators of each graph. ``steps``: graphs compiled in each step, the first one's included. ``equal``: of each step,
    whether its output is the eager one bit for bit. ``syncs``: operators that the host waits for. ``symbolic``: inputs whose
    size is no number. ``error``: why capture failed altogether, with its place; empty otherwise.
    """

    batch: int
    context: int
    backend: str
    graphs: Sequence[int]
    steps: Sequence[int]
    equal: Sequence[bool]
    breaks: Mapping[Break, int]
    syncs: int
    symbolic: int
    error: str

    @property
    def recompiles(self) -> int:
        """Graphs compiled after the first step."""
        return sum(self.steps[1:])

    def blockers(self) -> Sequence[Break]:
        """What stands between the step and one graph: breaks, and the place of an error."""
        found = [*self.breaks]
        if self.error:
            places = re.findall(r'File ".*?/((?:deepinfer|deep_cluster)/[^"]+)", line (\d+), in (\w+)', self.error)
            file, line, function = places[-1] if places else ("?", "?", "?")
            found.append(Break(f"{file}:{line} {function}", self.error.splitlines()[0]))
        return found

    def render(self) -> str:
        """One line, and one more for each blocker."""
        line = (
            f"batch {self.batch}, context {self.context}, {self.backend}: {len(self.graphs)} graphs of "
            f"{'+'.join(map(str, self.graphs)) or 0} operators, {sum(self.breaks.values())} breaks, {self.recompiles} recompiled in "
            f"{len(self.steps)} steps, {self.syncs} host syncs, output {'equal' if all(self.equal) else 'DIFFERENT'}"
        )
        return "\n".join([line, *(f"  {blocker.where}: {blocker.reason}" for blocker in self.blockers())])

    def to_json(self) -> Mapping[str, Any]:
        """Plain data."""
        blockers = [{"where": blocker.where, "reason": blocker.reason} for blocker in self.blockers()]
        counts = {"recompiles": self.recompiles, "syncs": self.syncs, "breaks": sum(self.breaks.values())}
        return {
            "batch": self.batch, "context": self.context, "backend": self.backend, "graphs": [*self.graphs],
            "equal": [*self.equal], **counts, "blockers": blockers,
        }  # fmt: skip


@dataclass(frozen=True)
class Operators:
    """Dispatched operators of one decode step, composite ones counted as what they are made of.

    ``calls``: kernel and vendor calls by name. ``inside``: operators by call and kind; ``outside``: the engine's own. Kinds that
    start with "view " move nothing, those with "memory " allocate only. ``lines``: where the engine's own come from.
    """

    batch: int
    context: int
    calls: Mapping[str, int]
    inside: Mapping[str, Mapping[str, int]]
    outside: Mapping[str, int]
    lines: Mapping[str, int]

    def work(self) -> Mapping[str, int]:
        """Operators that do work, by call, the most first."""
        return dict(Counter({name: _work(kinds) for name, kinds in self.inside.items()}).most_common())

    @property
    def total(self) -> int:
        """Operators that do work inside of calls."""
        return sum(self.work().values())

    @property
    def views(self) -> int:
        """Operators inside of calls that only make views or allocate."""
        return sum(sum(kinds.values()) for kinds in self.inside.values()) - self.total

    @property
    def own(self) -> int:
        """The engine's own operators that do work."""
        return _work(self.outside)


def _work(kinds: Mapping[str, int]) -> int:
    return sum(count for kind, count in kinds.items() if " " not in kind)


def captures(
    workspace: Workspace,
    model: Path,
    cases: Sequence[Mapping[str, Any]],
    *,
    timeout: float,
    arguments: Mapping[str, Any] = ARGUMENTS,
) -> Sequence[Capture]:
    """Capture in one engine, a case after the other: ``batch``, ``context``, ``backend``, and ``steps`` (3), ``fullgraph`` (True)."""
    looks = [{"look": "graph", "fullgraph": True, "project": str(ROOT), **case} for case in cases]
    return [_capture(case) for case in look(workspace, model, looks, timeout=timeout, arguments=arguments)["cases"]]


def _capture(case: Mapping[str, Any]) -> Capture:
    breaks = Counter(Break(one["where"], one["reason"]) for one in case["breaks"])
    return Capture(
        batch=case["batch"],
        context=case["context"],
        backend=case["backend"],
        graphs=[graph["nodes"] for graph in case["graphs"]],
        steps=[step["graphs"] for step in case["steps"]],
        equal=[step["equal"] for step in case["steps"]],
        breaks=breaks,
        syncs=sum(graph["syncs"] for graph in case["graphs"]),
        symbolic=sum(graph["symbolic"] for graph in case["graphs"]),
        error=case["error"],
    )


def operators(case: Mapping[str, Any]) -> Operators:
    """What a case with look "step" counted."""
    return Operators(
        case["batch"], case["context"], case["calls"], case["inside"], case["outside"], case["outside_lines"]
    )


def look(
    workspace: Workspace,
    model: Path,
    cases: Sequence[Mapping[str, Any]],
    *,
    timeout: float,
    arguments: Mapping[str, Any] = ARGUMENTS,
    memory_gb: str = "0.25",
) -> Mapping[str, Any]:
    """Start an engine and look at decode steps. ``memory_gb``: for caches. Raises EngineError where it stops."""
    request = {"model": str(model), "arguments": dict(arguments), "cases": [dict(case) for case in cases]}
    return oneshot.run(
        workspace, CHILD, request, timeout=timeout, environment={"DEEPINFER_NEURON_MEMORY_GB": memory_gb}
    )
