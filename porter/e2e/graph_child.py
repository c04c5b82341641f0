"""Runs inside the engine's process: looks at single decode steps of DeepInfer's own ``LLM``.

Called by path with the file of a request and the file of the answer, both JSON. It imports nothing of porter unless the
request names the backend "neuron", and changes nothing of the engine but the model's ``forward`` of the steps it looks at.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

# What the steps of a request are looked at with. A look gets (forward, arguments of forward) and returns the output.
Forward = Callable[..., Any]
Look = Callable[[Forward, dict[str, Any]], Any]

KERNELS, VENDOR = "/tilelang_ops/neuron/", "/neuron_ops/vendor/"
MEMORY = ("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided")


def main(request_path: Path, answer_path: Path) -> None:
    """Start the engine, and answer what the request asks for."""
    request = json.loads(request_path.read_text())
    began = time.perf_counter()
    from deepinfer.entrypoints.llm import LLM  # type: ignore[import-not-found]

    llm = LLM(request["model"], decode_sequence=False, **request["arguments"])
    start_seconds = time.perf_counter() - began
    cases = []
    for case in request["cases"]:
        cases.append({**case, **LOOKS[case["look"]](llm, case)})
        print(json.dumps(cases[-1])[:2000], flush=True)
    answer_path.write_text(json.dumps({"start_seconds": start_seconds, "cases": cases}))
    llm.close()


@contextmanager
def looked_at(llm: Any, batch: int, look: Look) -> Iterator[None]:
    """Let ``look`` run the model's forward of every decode step of ``batch`` real sequences."""
    model = llm.llm_engine.driver_worker.model_runner.model
    forward = model.forward

    def hooked(*positional: Any, **named: Any) -> Any:
        metadata = named["input_metadata"]
        if metadata.is_prompt or metadata.num_reqs != batch or not bool(metadata.valid_token_mask.all()):
            return forward(*positional, **named)
        assert not positional
        return look(forward, named)

    model.forward = hooked
    try:
        yield
    finally:
        del model.forward


def decode(llm: Any, batch: int, context: int, steps: int, look: Look) -> list[list[int]]:
    """Prefill ``batch`` prompts of ``context`` tokens, decode ``steps`` tokens; returns the tokens."""
    import numpy as np
    from deepinfer.sampling_params import SamplingParams  # type: ignore[import-not-found]

    vocabulary = llm.llm_engine.model_config.get_vocab_size()
    rng = np.random.default_rng(context)
    prompts = [rng.integers(4, vocabulary, size=context, dtype=np.int32) for _ in range(batch)]
    sampling = SamplingParams(temperature=0, max_tokens=steps, ignore_eos=True)
    with looked_at(llm, batch, look):
        outputs = llm.generate(prompt_token_ids=prompts, sampling_params=sampling, use_tqdm=False)
    return [[output.token_id for output in one] for one in outputs]


class Calls:
    """The calls of kernels and vendor functions that the engine makes: which one runs now, and how many there were."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.current: str | None = None
        self._frame: FrameType | None = None

    def __enter__(self) -> Calls:
        sys.setprofile(self._event)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _event(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and self._frame is None:
            file = frame.f_code.co_filename
            if KERNELS in file or VENDOR in file:
                self.current = _name(frame)
                self._frame = frame
                # A factory that makes a kernel is no call of the kernel.
                self.counts[self.current] += VENDOR in file or "<locals>" in frame.f_code.co_qualname
        elif event == "return" and frame is self._frame:
            self._frame = self.current = None


def _name(frame: FrameType) -> str:
    code = frame.f_code
    file = code.co_filename
    qualified = code.co_qualname
    if KERNELS in file:
        return "kernel " + qualified.split(".<locals>.")[0]
    package = file.split(VENDOR)[1].split("/")[0]
    return f"{package}.{qualified.replace('.<locals>', '')}"


def step(llm: Any, case: dict[str, Any]) -> dict[str, Any]:
    """Seconds of a decode step and of the model's forward in it, medians, what the forward's peak takes beside what was
    resident before, and the operators that one more step dispatches, by the kernel or vendor call they are made in."""
    import statistics

    counted = _Counted()
    starts: list[float] = []
    forwards: list[float] = []
    peaks: list[int] = []

    def look(forward: Forward, named: dict[str, Any]) -> Any:
        if len(starts) == case["steps"]:
            return counted(forward, named) if not counted.done else forward(**named)
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again at what is resident now
        resident = _status("VmRSS")
        starts.append(time.perf_counter())
        output = forward(**named)
        forwards.append(time.perf_counter() - starts[-1])
        peaks.append(_status("VmHWM") - resident)
        return output

    decode(llm, case["batch"], case["context"], case["steps"] + 3, look)
    # The first may still fill caches.
    steps = [later - earlier for earlier, later in itertools.pairwise(starts[1:])]
    return {
        "step_seconds": statistics.median(steps),
        "forward_seconds": statistics.median(forwards[1:]),
        "tokens_per_second": case["batch"] / statistics.median(steps),
        "peak_bytes": max(peaks),
        **counted.answer(),
    }


class _Counted:
    """Runs one forward pass and counts what it dispatches."""

    def __init__(self) -> None:
        self.done = False
        self._calls = Calls()
        self._inside: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._outside: Counter[str] = Counter()
        self._lines: Counter[str] = Counter()

    def __call__(self, forward: Forward, named: dict[str, Any]) -> Any:
        from torch.utils._python_dispatch import TorchDispatchMode

        took = self._took

        class Count(TorchDispatchMode):  # type: ignore[no-untyped-call]
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                with self:  # what is made of other operators counts as these
                    made = func.decompose(*args, **(kwargs or {}))
                if made is not NotImplemented:
                    return made
                took(func)
                return func(*args, **(kwargs or {}))

        self.done = True
        with self._calls, Count():  # type: ignore[no-untyped-call]
            return forward(**named)

    def _took(self, func: Any) -> None:
        kind = str(func).removeprefix("aten.")
        if func.is_view:
            kind = "view " + kind
        elif kind.split(".")[0] in MEMORY:
            kind = "memory " + kind
        if self._calls.current is not None:
            self._inside[self._calls.current][kind] += 1
            return
        self._outside[kind] += 1
        if " " not in kind:
            self._lines[f"{kind} {_engine_line()}"] += 1

    def answer(self) -> dict[str, Any]:
        """Counts, the most first."""
        return {
            "calls": dict(self._calls.counts.most_common()),
            "inside": {name: dict(counter.most_common()) for name, counter in self._inside.items()},
            "outside": dict(self._outside.most_common()),
            "outside_lines": dict(self._lines.most_common()),
        }


def _status(name: str) -> int:
    """A number of bytes from this process's status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {name} in /proc/self/status")


def _engine_line() -> str:
    frame: FrameType | None = sys._getframe(3)
    while frame is not None:
        file = frame.f_code.co_filename
        if "/deepinfer/" in file and "transfer_to_neuron" not in file:
            return f"deepinfer/{file.rsplit('/deepinfer/', 1)[1]}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


def graph(llm: Any, case: dict[str, Any]) -> dict[str, Any]:
    """The decode step as torch.compile captures it: graphs, breaks, recompilations, and whether its output is the eager one's."""
    import torch
    import torch._dynamo
    from torch._dynamo import utils

    torch._dynamo.reset()
    utils.counters.clear()
    utils.graph_break_reasons.clear()
    graphs: list[dict[str, Any]] = []

    def backend(captured: Any, examples: Sequence[Any]) -> Any:
        graphs.append(_described(captured, examples))
        return captured.forward

    def functional_backend(captured: Any, examples: Sequence[Any]) -> Any:
        from torch._dynamo.backends.common import aot_autograd

        def compiler(functional: Any, inputs: Sequence[Any]) -> Any:
            graphs.append(_described(functional, inputs))
            return functional.forward

        return aot_autograd(fw_compiler=compiler, keep_inference_input_mutations=True)(captured, examples)

    def neuron_backend(captured: Any, examples: Sequence[Any]) -> Any:
        sys.path.append(case["project"])
        from porter.sim import compile as simulated

        known = len(simulated.REPORT.graphs)
        made = simulated.neuron_backend(captured, examples)
        graphs.extend(
            {"nodes": graph.operators, "symbolic": 0, "syncs": 0} for graph in simulated.REPORT.graphs[known:]
        )
        return made

    backends = {"count": backend, "functional": functional_backend, "neuron": neuron_backend}
    caches = _Caches(llm)
    fullgraph = case.get("fullgraph", False)
    steps: list[dict[str, Any]] = []
    compiled: Any = None
    error = ""

    def look(forward: Forward, named: dict[str, Any]) -> Any:
        nonlocal compiled, error
        if error or len(steps) >= case.get("steps", 3):
            return forward(**named)
        before = [base.clone() for base in caches.bases]
        expected = forward(**named)
        output = expected.hidden_states.clone()
        written = [base.clone() for base in caches.bases]
        for base, earlier in zip(caches.bases, before, strict=True):
            base.copy_(earlier)
        if compiled is None:
            step = caches.bound(forward)
            compiled = torch.compile(step, fullgraph=fullgraph, dynamic=False, backend=backends[case["backend"]])
        known = len(graphs)
        began = time.perf_counter()
        try:
            found = compiled(*caches.bases, named["input_metadata"]).hidden_states
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"
            found = torch.empty(0)
        pairs = zip((found, *caches.bases), (output, *written), strict=True)
        steps.append(
            {
                "seconds": time.perf_counter() - began,
                "graphs": len(graphs) - known,
                "equal": all(torch.equal(one, other) for one, other in pairs),
                "wrote": not all(map(torch.equal, before, written)),
            }
        )
        for base, after in zip(caches.bases, written, strict=True):
            base.copy_(after)
        return expected

    decode(llm, case["batch"], case["context"], case.get("steps", 3) + 2, look)
    breaks = [
        {"where": _place(reason.user_stack), "reason": (reason.reason.splitlines() or [""])[0]}
        for reason in utils.graph_break_reasons
    ]
    return {"graphs": graphs, "steps": steps, "breaks": breaks, "error": error}


SYNCS = ("_local_scalar_dense", "item", "nonzero", "masked_select", "is_nonzero", "equal", "unique")
"""Operators whose result the host waits for."""


def _described(captured: Any, examples: Sequence[Any]) -> dict[str, Any]:
    import torch

    called = [node for node in captured.graph.nodes if node.op in ("call_function", "call_method")]
    names = [str(getattr(node.target, "__name__", node.target)).split(".")[0] for node in called]
    return {
        "nodes": len(called),
        "symbolic": sum(isinstance(example, torch.SymInt) for example in examples),
        "syncs": sum(name in SYNCS for name in names),
    }


class _Caches:
    """The engine's caches as what they are views of: one tensor of blocks and one of states, both bytes.

    A graph gets these two, and makes the layers' views itself: views of one memory under several types cannot be inputs of
    a functional graph that writes to them.
    """

    def __init__(self, llm: Any) -> None:
        engine = llm.llm_engine.driver_worker.cache_engine
        self.bases = (engine.gpu_blocks, engine.gpu_states)
        layers = [
            engine.gpu_cache[index]
            for index in range(len(llm.llm_engine.driver_worker.model_runner.model.model.layers))
        ]
        self._kind = type(layers[0])
        self._layers = [{name: self._recipe(value) for name, value in vars(layer).items()} for layer in layers]

    def _recipe(self, value: Any) -> tuple[Any, ...] | None:
        import torch

        if value is None:
            return None
        assert isinstance(value, torch.Tensor)
        for number, base in enumerate(self.bases):
            if base.untyped_storage().data_ptr() == value.untyped_storage().data_ptr():
                width = value.itemsize
                assert value.stride(-1) == 1 and base.dtype == torch.uint8
                size = (*value.shape[:-1], value.shape[-1] * width)
                stride = (*(step * width for step in value.stride()[:-1]), 1)
                return number, size, stride, value.storage_offset() * width, value.dtype
        raise AssertionError("a cache that is a view of neither blocks nor states")

    def bound(self, forward: Forward) -> Callable[..., Any]:
        """``forward`` of (blocks, states, metadata)."""
        layers, kind = self._layers, self._kind

        def step(blocks: Any, states: Any, input_metadata: Any) -> Any:
            bases = (blocks, states)
            caches = []
            for layer in layers:
                made: dict[str, Any] = {}
                for name, recipe in layer.items():
                    if recipe is None:
                        made[name] = None
                    else:
                        number, size, stride, offset, dtype = recipe
                        made[name] = bases[number].as_strided(size, stride, offset).view(dtype)
                caches.append(kind(**made))
            return forward(kv_caches=caches, input_metadata=input_metadata)

        return step


def _place(stack: Any) -> str:
    """``file:line function`` of the innermost frame that is the engine's, relative to the checkout or to torch."""
    frames = list(stack)
    for frame in reversed(frames):
        if "/deepinfer/" in frame.filename:
            return f"deepinfer/{frame.filename.rsplit('/deepinfer/', 1)[1]}:{frame.lineno} {frame.name}"
    return f"{frames[-1].filename}:{frames[-1].lineno} {frames[-1].name}" if frames else "?"


LOOKS: dict[str, Callable[[Any, dict[str, Any]], dict[str, Any]]] = {"graph": graph, "step": step}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
