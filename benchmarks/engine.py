"""DeepInfer on the emitted backend, on the host: speed, memory and dispatched operators of decode steps.

    python benchmarks/engine.py [--json FILE] [--cells BATCHxCONTEXT ...] [--top N] [--reference MODULE:FUNCTION]

One engine with the tiny checkpoint decodes at several batch sizes and contexts. Speed and memory are of steps that nothing looks
into: medians, one thread. Operators are counted in one step more, with a dispatch mode: composite ones as what they are made of,
views and bare allocations apart, by the kernel or vendor call in which the engine makes them. Each operator of work costs about
60 us on the device, whatever the processor says here. ``peak`` is the resident memory at the height of a forward pass, less what
was resident before it.

``--reference``: a function of (model folder, batch, context) that returns tokens a second of another implementation in the same
run; printed beside.

Exits 1 when operators grow with batch or context by more than a tenth: then something computes a sequence or a block at a time.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from porter.config import load_config  # noqa: E402
from porter.demo import checkpoint, layout  # noqa: E402
from porter.demo.workspace import Workspace, prepare  # noqa: E402
from porter.e2e import graph  # noqa: E402
from porter.e2e.graph import Operators  # noqa: E402

CELLS = ("1x256", "4x256", "16x256", "1x2048", "4x2048", "1x8192")
STEPS = 10
GROWTH = 1.1
# The rough experiment's: kernel and vendor calls in a decode step of six layers.
CALLS_BEFORE = 261
LENGTH = 8448


def main() -> int:
    """Run, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--cells", nargs="+", default=CELLS, metavar="BATCHxCONTEXT")
    parser.add_argument("--top", type=int, default=15, help="calls to list")
    parser.add_argument("--reference", metavar="MODULE:FUNCTION")
    parser.add_argument("--timeout", type=float, default=7200, help="seconds for all of it")
    given = parser.parse_args()
    cells = [(int(batch), int(context)) for batch, context in (cell.split("x") for cell in given.cells)]
    workspace = prepare(load_config(ROOT / "porter.toml"))
    with tempfile.TemporaryDirectory(prefix="porter-bench-") as folder:
        model = long_model(Path(folder) / "model")
        answer = measure(workspace, model, cells, timeout=given.timeout)
        reference = _reference(given.reference)
        others = [reference(model, *cell) if reference else None for cell in cells]
    speeds = answer["cases"]
    counts = [graph.operators(case) for case in speeds]
    print(table(speeds, counts, others))
    print(spenders(counts[0], given.top))
    if given.json is not None:
        given.json.write_text(json.dumps(_plain(speeds, counts, others), indent=1) + "\n")
    works = [count.total for count in counts]
    grown = max(works) / min(works)
    print(f"\noperators inside calls: {min(works)} to {max(works)}, {grown:.2f} times (at most {GROWTH})")
    return int(grown > GROWTH)


def long_model(folder: Path) -> Path:
    """The tiny checkpoint, with positions up to the longest context."""
    checkpoint.write(folder)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 2 * LENGTH
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def measure(
    workspace: Workspace, model: Path, cells: Sequence[tuple[int, int]], *, timeout: float
) -> Mapping[str, Any]:
    """Each cell's speed and its operators, in one engine."""
    cases = [{"look": "step", "batch": batch, "context": context, "steps": STEPS} for batch, context in cells]
    arguments = {
        "max_model_len": LENGTH, "max_num_seqs": max(batch for batch, _ in cells), "max_num_batched_tokens": 1024,
        "chunked_prefill": True,
    }  # fmt: skip
    return graph.look(workspace, model, cases, timeout=timeout, arguments=arguments, memory_gb="1")


def table(speeds: Sequence[Mapping[str, Any]], counts: Sequence[Operators], others: Sequence[float | None]) -> str:
    """A line a cell."""
    lines = [
        f"{'batch':>5} {'context':>7} {'tok/s':>7} {'other':>7} {'step ms':>8} {'fwd ms':>7} {'peak MiB':>8} "
        f"{'calls':>5} {'ops in':>6} {'a layer':>7} {'views':>6} {'ops out':>7}"
    ]
    for case, count, other in zip(speeds, counts, others, strict=True):
        lines.append(
            f"{count.batch:>5} {count.context:>7} {case['tokens_per_second']:>7.1f} "
            f"{'-' if other is None else format(other, '.1f'):>7} {1e3 * case['step_seconds']:>8.1f} "
            f"{1e3 * case['forward_seconds']:>7.1f} {case['peak_bytes'] / 2**20:>8.1f} "
            f"{sum(count.calls.values()):>5} {count.total:>6} {count.total / layout.LAYERS:>7.0f} {count.views:>6} {count.own:>7}"
        )
    lines.append(
        f"calls: kernel and vendor calls of a step of {layout.LAYERS} layers; the rough experiment made {CALLS_BEFORE}"
    )
    return "\n".join(lines)


def spenders(count: Operators, top: int) -> str:
    """The calls that dispatch most."""
    lines = [f"\nbatch {count.batch}, context {count.context}: where the {count.total} operators are"]
    for name, work in [*count.work().items()][:top]:
        calls = count.calls.get(name, 0)
        kinds = sorted(((number, kind) for kind, number in count.inside[name].items() if " " not in kind), reverse=True)
        most = ", ".join(f"{kind.removesuffix('.default')} {number}" for number, kind in kinds[:5])
        lines.append(
            f"{work:>6} {100 * work / count.total:>5.1f} % {calls:>4} x {work / max(calls, 1):>6.1f}  {name}: {most}"
        )
    own = ", ".join(f"{line} {number}" for line, number in count.lines.items())
    return "\n".join([*lines, f"outside of calls, {count.own}: {own}"])


def _plain(
    speeds: Sequence[Mapping[str, Any]], counts: Sequence[Operators], others: Sequence[float | None]
) -> Sequence[Mapping[str, Any]]:
    return [
        {
            "batch": count.batch,
            "context": count.context,
            "tokens_per_second": case["tokens_per_second"],
            "reference_tokens_per_second": other,
            "step_seconds": case["step_seconds"],
            "forward_seconds": case["forward_seconds"],
            "peak_bytes": case["peak_bytes"],
            "calls": dict(count.calls),
            "operators": count.total,
            "views": count.views,
            "operators_outside": count.own,
            "by_call": {name: dict(count.inside[name]) for name in count.work()},
            "outside": dict(count.lines),
        }
        for case, count, other in zip(speeds, counts, others, strict=True)
    ]


def _reference(name: str | None) -> Callable[[Path, int, int], float] | None:
    if name is None:
        return None
    module, _, function = name.partition(":")
    found: Callable[[Path, int, int], float] = getattr(importlib.import_module(module), function)
    return found


if __name__ == "__main__":
    sys.exit(main())
