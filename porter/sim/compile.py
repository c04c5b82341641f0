"""``torch.compile(backend="neuron")``: graphs are captured as TorchNeuron captures them, checked, and run operator by
operator.

Dynamic shapes are refused. Graphs, breaks and recompilations are counted in ``REPORT``. That a graph is accepted here does
not say that the device's compiler accepts it.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from porter.sim import callers, runtime, streams
from porter.sim.errors import DeviceLimitError
from porter.sim.names import NAME
from porter.sim.storage import on_device
from porter.sim.watchers import WATCHERS, Event, Launch, tell

_DYNAMO = "torch._dynamo"


@dataclass(frozen=True)
class Graph:
    """A captured graph. ``frame``: number of the compiled function; ``attempt`` above 0: it was compiled again."""

    frame: int
    attempt: int
    operators: int
    reason: str = ""

    @property
    def recompiled(self) -> bool:
        """Was the function compiled before, for other inputs?"""
        return self.attempt > 0


@dataclass
class CompileReport:
    """What was compiled since the last ``clear``."""

    graphs: list[Graph] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    _breaks: dict[str, int] = field(default_factory=dict)

    def breaks(self) -> dict[str, int]:
        """Graph breaks by reason, as Dynamo counted them."""
        now = _counted_breaks()
        return {reason: n - self._breaks.get(reason, 0) for reason, n in now.items() if n > self._breaks.get(reason, 0)}

    @property
    def recompiles(self) -> int:
        """Graphs of functions that had been compiled before."""
        return sum(graph.recompiled for graph in self.graphs)

    def metrics(self) -> dict[str, int]:
        """Counts."""
        return {
            "graphs": len(self.graphs),
            "graph_breaks": sum(self.breaks().values()),
            "recompiles": self.recompiles,
            "refused": len(self.refused),
        }

    def known(self) -> tuple[int, int, int]:
        """(graphs, breaks, recompilations) since the last ``clear``; does not import Dynamo."""
        if _DYNAMO not in sys.modules:
            return 0, 0, 0
        return len(self.graphs), sum(self.breaks().values()), self.recompiles

    def clear(self) -> None:
        """Start again."""
        self.graphs.clear()
        self.refused.clear()
        self._breaks = _counted_breaks()


def _counted_breaks() -> dict[str, int]:
    from torch._dynamo.utils import counters

    return {str(reason): int(count) for reason, count in counters["graph_break"].items()}


REPORT = CompileReport()


def _is_symbolic(value: object) -> bool:
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return True
    return isinstance(value, torch.Tensor) and any(isinstance(extent, torch.SymInt) for extent in value.shape)


def refuse_dynamic(graph: Any) -> None:
    """Raises: DeviceLimitError for a graph with a dimension that is not a number."""
    for node in graph.graph.nodes:
        value = node.meta.get("val", node.meta.get("example_value"))
        for leaf in pytree.tree_leaves(value):
            if _is_symbolic(leaf):
                shape = tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else leaf
                message = f"dynamic shapes: {node.name} has shape {shape}; the neuron backend requires static shapes"
                REPORT.refused.append(message)
                with callers.inside(node.meta.get("stack_trace")):
                    tell(Event("NCC_EMOD025", str(node.target), str(shape)))
                raise DeviceLimitError(
                    f"NCC_EMOD025: {message}",
                    fix="torch.compile(..., dynamic=False), one compiled callable a shape",
                )


class _Runner(torch.fx.Interpreter):
    """Runs a graph; strict mode sees the line each node stems from."""

    def run_node(self, n: torch.fx.Node) -> Any:
        """One node."""
        with callers.inside(n.meta.get("stack_trace")):
            return super().run_node(n)


def _compile_id() -> tuple[int, int]:
    from torch._guards import CompileContext

    current: Any = CompileContext.current_compile_id()
    if current is None:
        return -1, 0
    return int(current.frame_id or 0), int(current.frame_compile_id or 0)


def compile_graph(graph: Any, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A callable for a captured graph of ATen operators with static shapes.

    Raises:
        DeviceLimitError: dynamic shapes.
    """
    refuse_dynamic(graph)
    frame, attempt = _compile_id()
    count = sum(node.op == "call_function" for node in graph.graph.nodes)
    REPORT.graphs.append(Graph(frame, attempt, count))
    if attempt:
        tell(Event("SIM114", "torch.compile", f"compiled {attempt + 1} times"))
    runner = _Runner(graph)

    def run(*args: Any) -> Any:
        result = runner.run(*args)
        if WATCHERS:
            leaves = [leaf for leaf in pytree.tree_leaves(result) if on_device(leaf)]
            launch = Launch([one for one in args if on_device(one)], leaves)
            for watcher in tuple(WATCHERS):
                watcher.launches(launch)
        return result

    return run


def neuron_backend(graph: Any, inputs: Sequence[Any], *, mode: str | None = None, options: Any = None) -> Any:
    """The backend that ``torch.compile(backend="neuron")`` finds."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch import aot_autograd as captured_by

    make_boxed_func: Any = vars(captured_by)["make_boxed_func"]

    if mode not in (None, "default"):
        warnings.warn(f"the neuron backend has mode 'default' only; {mode!r} is ignored", stacklevel=2)

    def compiler(captured: Any, examples: Sequence[Any]) -> Any:
        return make_boxed_func(compile_graph(captured, examples))

    refuse_dynamic(graph)
    backend: Any = aot_autograd(fw_compiler=compiler, keep_inference_input_mutations=True)
    return backend(graph, inputs)


def _register_backend(registry: Any) -> None:
    registry.register_backend(neuron_backend, name=NAME)


def _skip_kernels(trace_rules: Any) -> None:
    """After a graph break Dynamo would look into the device's own kernels."""
    trace_rules.add("porter.sim")


def _register_interface(interfaces: Any) -> None:
    class Worker:
        """The same in a worker of Dynamo."""

        set_device = staticmethod(runtime.set_device)
        current_device = staticmethod(runtime.current_device)
        get_device_properties = staticmethod(runtime.get_device_properties)

    def nothing(*args: Any, **kwargs: Any) -> None:
        """Nothing to do."""

    def exchange(device: int) -> int:
        previous = runtime.current_device()
        if device >= 0:
            runtime.set_device(device)
        return previous

    members: dict[str, Any] = {
        "device": runtime.DeviceContext, "Event": streams.Event, "Stream": streams.Stream, "Worker": Worker,
        "current_device": staticmethod(runtime.current_device), "set_device": staticmethod(runtime.set_device),
        "device_count": staticmethod(runtime.device_count), "is_available": staticmethod(runtime.is_available),
        "stream": staticmethod(streams.StreamContext), "current_stream": staticmethod(streams.current_stream),
        "set_stream": staticmethod(streams.set_stream), "_set_stream_by_id": staticmethod(nothing),
        "synchronize": staticmethod(runtime.synchronize),
        "get_device_properties": staticmethod(runtime.get_device_properties),
        "get_compute_capability": staticmethod(lambda device=None: 0), "exchange_device": staticmethod(exchange),
        "maybe_exchange_device": staticmethod(exchange), "get_raw_stream": staticmethod(lambda device: 0),
        "memory_allocated": staticmethod(runtime.memory_allocated),
        "is_bf16_supported": staticmethod(runtime.is_bf16_supported),
        "is_dtype_supported": staticmethod(
            lambda dtype, including_emulation=False: dtype is not torch.float64 and not dtype.is_complex
        ),
    }  # fmt: skip
    kind = type("NeuronInterface", (interfaces.DeviceInterface,), members)
    interfaces.register_interface_for_device(NAME, kind)


_WHEN_LOADED: dict[str, Callable[[Any], None]] = {
    "torch._dynamo.backends.registry": _register_backend,
    "torch._dynamo.device_interface": _register_interface,
    "torch._dynamo.trace_rules": _skip_kernels,
}
_done: set[str] = set()


def _act(name: str, module: Any) -> None:
    if name not in _done:
        _done.add(name)
        _WHEN_LOADED[name](module)


class _Loader(Loader):
    """Loads a module of Dynamo, then acts on it."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the module's own loader does."""
        module: ModuleType | None = self.inner.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """As the module's own loader does, and more."""
        self.inner.exec_module(module)
        _act(module.__name__, module)


class _Finder(MetaPathFinder):
    """Meets the imports of some modules of Dynamo."""

    def __init__(self) -> None:
        self._looking = False

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """The module's own spec, with a loader that acts."""
        if fullname not in _WHEN_LOADED or fullname in _done or self._looking:
            return None
        self._looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._looking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def register() -> None:
    """Make the backend and the device known to Dynamo: now as far as it is imported, else when it is. Importing it takes
    seconds, and few programs need it."""
    for name in _WHEN_LOADED:
        if name in sys.modules:
            _act(name, sys.modules[name])
    if len(_done) < len(_WHEN_LOADED) and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
