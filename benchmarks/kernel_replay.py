"""Pytest plugin of ``kernels.py``: records kernel calls in upstream's own tests and times them against the reference.

Runs beside ``porter.verify.plugin``, which makes upstream's interface modules importable. A case runs until its
interface function and its reference were called on the same inputs; then it is left. Of each kind of case the one nearest
to a number of rows (a decode step) or the largest (a prefill) is kept, and replayed once its module is done. One JSON object a line goes to the file
that ``PORTER_BENCHMARK`` names settings for.
"""

from __future__ import annotations

import copy
import functools
import gc
import importlib
import inspect
import json
import os
import re
import statistics
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SETTINGS = "PORTER_BENCHMARK"
_OPS = "deepinfer.model_executor.layers.tilelang_ops.ops"
_WARM_UP, _LEAST, _MOST, _BUDGET = 2, 15, 101, 0.4
_SHORT = 2e-3
GROWTH = 16
FLOOR, MEAN = 0.9, 2.0
# A cache write's time on the larger cache over that on its own: what is above the noise of two equal measurements.
CACHE_RATIO = 1.3

# Interface functions whose name is not the reference's without "_ref".
_INTERFACES = {"sum_smaller_probs": "get_sum_smaller_probs"}
# References that no test calls on the kernel's inputs: they get the interface function's arguments.
_BOUND = {"random_sampling", "fused_sample"}
# The widths of which norm and compress are each compared: the model's own.
_NORM_WIDTHS = (128, 512, 1536, 7168)
# Distribution tests of two or so columns are no sampling from a vocabulary.
_LEAST_VOCABULARY = 1024
# More tokens than this are no decode step.
_DECODE_TOKENS = 256
# Kernels of prompts and images alone: no decode step calls them.
_PREFILL_ONLY = {
    "batch_downsample",
    "compress_and_update_state_prefill",
    "get_kv_ca_index_prefill",
    "prepare_cp_mirror",
    "replace_input_embeds",
    "rgb_pad_to_patches",
    "yoco_cp_boundary_fused",
}
# The argument whose value is the number of tokens, where that is not the length of the first tensor.
_TOKENS = {"load_paged_kv_cache": "total_k"}
# Cache writes: the written argument that grows, the axis, and the factory's argument that grows with it.
_CACHES = {
    "store_kv_cache_tl": (("kv_cache", "cache"), 0, ""),
    "fused_norm_rope_hadamard_cast_store_kvcache_tl": (("kv_cache",), 0, ""),
    "compress_and_update_state_prefill_tl": (("state_cache",), 0, ""),
    "compress_and_update_state_decode_tl": (("state_cache",), 0, ""),
    "load_state_to_cache_tl": (("state_cache",), 1, "block_size_kvstore"),
    "store_mtp_info_tl": (("token_ids_pool", "logprobs_pool", "logprobs_index_pool", "confidence_pool"), 0, ""),
}


class _Enough(Exception):
    """Leaves a test case whose calls are recorded."""


def _tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Tensors in a value: containers, dataclasses and plain objects are looked into."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item, depth + 1)
    elif (
        depth < 5 and hasattr(value, "__dict__") and not isinstance(value, (type, types.ModuleType, types.FunctionType))
    ):
        yield from _tensors(vars(value), depth + 1)


def _size(name: str, arguments: Mapping[str, Any]) -> tuple[int, int]:
    """(tokens, elements) of a call."""
    elements = sum(tensor.numel() for tensor in _tensors(arguments))
    if name in _TOKENS:
        return int(arguments[_TOKENS[name]]), elements
    first = next(iter(arguments.values()))
    if isinstance(first, list):
        return sum(first), elements
    return next((tensor.shape[0] if tensor.ndim else 1 for tensor in _tensors(arguments)), 0), elements


def _bound(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return inspect.signature(function).bind(*args, **kwargs).arguments


def _copied(value: Any) -> Any:
    """Deep copy with strides and shared storages kept, as normal tensors."""
    with torch.inference_mode(False), torch.no_grad(), torch._C.DisableTorchFunction():
        return copy.deepcopy(value)


def _variant(name: str, case: str, arguments: Mapping[str, Any]) -> str:
    """Which of an interface's kinds of work a call is; each kind is compared for itself."""
    if name == "norm":
        parts = [f"{'fp8' if 'npc' in case else 'bf16'} d{arguments['x'].shape[-1]}"]
        return " ".join(parts + ["residual"] * (arguments.get("residual") is not None))
    if name.startswith("compress_and_update_state"):
        return f"d{next(iter(arguments.values())).shape[-1]}"
    if name == "fused_norm_rope_hadamard_cast_store_kvcache":
        return re.sub(r"-n\d+$", "", case)
    if name in ("store_kv_cache", "load_paged_kv_cache"):
        layout = arguments["layout"]
        return f"{layout.quantized_dtype or 'bf16'}-{layout.num_elements}-{layout.sf_format or 'none'}"
    if name == "fused_sample":
        if arguments.get("last_nextn_token_logprobs") is not None:
            return "verify"
        return "sample" if hasattr(arguments["sampling_inputs"], "seq_seeds") else "logprobs"
    if name in ("map_lookup", "batch_downsample"):
        return str(arguments.get("mode", ""))
    return ""


@dataclass(frozen=True)
class KernelCall:
    """A kernel with the arguments that it was called with; ``make`` and ``constants`` are its factory's."""

    factory: str
    make: Callable[..., Any]
    constants: Mapping[str, Any]
    kernel: Callable[..., Any]
    args: tuple[Any, ...]


@dataclass
class Case:
    """One comparison: kernel calls of one interface call, and what the reference does for the same result."""

    name: str
    variant: str
    case: str
    size: tuple[int, int]
    kernels: list[KernelCall] = field(default_factory=list)
    references: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    whole: bool = False


class _Counter(TorchDispatchMode):
    """Ops that do work (views are free), and bytes of the storages that they make."""

    def __init__(self) -> None:
        super().__init__()
        self.ops = 0
        self.bytes = 0
        self._alive: dict[int, torch.Tensor] = {}

    def know(self, values: Any) -> None:
        """Storages that exist already."""
        for tensor in _tensors(values):
            self._alive[tensor.untyped_storage().data_ptr()] = tensor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.is_view:
            return out
        self.ops += 1
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage().data_ptr() not in self._alive:
                self._alive[leaf.untyped_storage().data_ptr()] = leaf
                self.bytes += leaf.untyped_storage().nbytes()
        return out


def _seconds(work: Callable[[], Any]) -> float:
    """Processor time: other work on the machine takes none of it."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


def alternate(left: Callable[[], float], right: Callable[[], float], floor: float) -> tuple[float, float]:
    """Medians in microseconds of two timed jobs, taken turn by turn after a warm-up.

    Where ``right / left`` comes out somewhat below ``floor`` it is measured twice more, and the middle of the three
    counts: other work on the machine disturbs a measurement now and then, and it must not decide.
    """
    start = time.perf_counter()
    for _ in range(_WARM_UP):
        left(), right()
    # Copying counts here: a large cache takes longer to copy than to write to.
    count = max(_LEAST, min(_MOST, int(_BUDGET * _WARM_UP / (time.perf_counter() - start))))

    def once() -> tuple[float, float]:
        pairs = [(left(), right()) for _ in range(count)]
        one, two = (statistics.median(values) for values in zip(*pairs, strict=True))
        return one * 1e6, two * 1e6

    first = once()
    if first[1] >= floor * first[0] or first[1] < first[0] / 4:
        return first
    return sorted((first, once(), once()), key=lambda pair: pair[1] / pair[0])[1]


def _on_copies(calls: Any, run: Callable[[Any], Any]) -> Callable[[], float]:
    """A job that gives the seconds of a run on fresh copies.

    Where a run is short, one on other copies goes before it: copying a cache leaves the code cold.
    """
    last = 0.0

    def job() -> float:
        nonlocal last
        fresh = _copied(calls)
        if last < _SHORT:
            run(_copied(calls))
        last = _seconds(lambda: run(fresh))
        return last

    return job


def _count(calls: Any, run: Callable[[Any], Any]) -> int:
    fresh = _copied(calls)
    with _Counter() as counter:
        run(fresh)
    return counter.ops


def replay(case: Case) -> dict[str, Any]:
    """Time the case: microseconds and ops, of the kernels and of the reference."""
    kernels, references = [call.kernel for call in case.kernels], [call[0] for call in case.references]
    kernel_args = [call.args for call in case.kernels]
    reference_args = [call[1:] for call in case.references]

    def run_kernels(calls: Any) -> None:
        for kernel, args in zip(kernels, calls, strict=True):
            kernel(*args)

    def run_references(calls: Any) -> None:
        for reference, (args, kwargs) in zip(references, calls, strict=True):
            reference(*args, **kwargs)

    ours, theirs = alternate(_on_copies(kernel_args, run_kernels), _on_copies(reference_args, run_references), FLOOR)
    return {
        "kind": "speed",
        "name": case.name,
        "factories": [call.factory for call in case.kernels],
        "variant": case.variant,
        "case": case.case,
        "tokens": case.size[0],
        "kernel_us": ours,
        "reference_us": theirs,
        "kernel_ops": _count(kernel_args, run_kernels),
        "reference_ops": _count(reference_args, run_references),
    }


def enlarged(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """A tensor ``GROWTH`` times longer along ``axis``, the given one's values in its first part, gaps in strides kept."""
    shape, strides = list(tensor.shape), list(tensor.stride())
    shape[axis] *= GROWTH
    for index in range(axis):
        strides[index] *= GROWTH
    span = 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    grown = torch.zeros(span, dtype=tensor.dtype).as_strided(shape, strides)
    grown.narrow(axis, 0, tensor.shape[axis]).copy_(tensor)
    return grown


def replay_cache(case: Case) -> dict[str, Any] | None:
    """Time the case's cache write on its own cache and on one ``GROWTH`` times larger; None when it writes no cache."""
    call = next((call for call in case.kernels if call.factory in _CACHES), None)
    if call is None:
        return None
    names, axis, constant = _CACHES[call.factory]
    small = _copied(call.args)
    named = dict(zip(inspect.signature(call.kernel).parameters, small, strict=True))
    grown = [name for name in names if isinstance(named.get(name), torch.Tensor)]
    if not grown:
        return None
    large = [enlarged(value, axis) if name in grown else value for name, value in named.items()]
    kernel = call.kernel
    if constant:
        kernel = call.make(**{**call.constants, constant: call.constants[constant] * GROWTH})
    # Turned round, so that what comes out too dear is measured again.
    after, before = alternate(
        lambda: _seconds(lambda: kernel(*large)), lambda: _seconds(lambda: call.kernel(*small)), 1 / CACHE_RATIO
    )
    made = []
    for job, args in ((call.kernel, small), (kernel, large)):
        counter = _Counter()
        counter.know(args)
        with counter:
            job(*args)
        made.append(counter)
    return {
        "kind": "cache",
        "name": case.name,
        "factories": [call.factory],
        "variant": case.variant,
        "tokens": case.size[0],
        "cache_bytes": sum(named[name].numel() * named[name].itemsize for name in grown),
        "small_us": before,
        "large_us": after,
        "small_bytes": made[0].bytes,
        "large_bytes": made[1].bytes,
        "small_ops": made[0].ops,
        "large_ops": made[1].ops,
    }


class Replayer:
    """Hooks: patch what the tests call, keep the extreme cases of the current module, replay them when it is done."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.rows: int | None = settings["rows"]
        self.left_out: Counter[tuple[str, str]] = Counter()
        self.output = Path(settings["output"])
        self.kept: dict[tuple[str, str], Case] = {}
        self.case: Case | None = None
        self.item: pytest.Item | None = None
        self.module = ""
        self.extra: list[Any] = []
        self._inside = False

    # recording

    def _open(self, name: str, arguments: Mapping[str, Any]) -> Case | None:
        """The running case of an interface, None when a better one of its kind is known."""
        if self.item is None:
            return None
        if self.case is not None:
            return self.case if self.case.name == name else None
        callspec = getattr(self.item, "callspec", None)
        case = callspec.id if callspec is not None else ""
        size = _size(name, arguments)
        reason = self._why_not(name, arguments, size[0])
        if reason:
            self.left_out[name, reason] += 1
            raise _Enough
        variant = _variant(name, case, arguments)
        known = self.kept.get((name, variant))
        if known is not None and self._rank(size) <= self._rank(known.size):
            raise _Enough
        self.case = Case(name, variant, case, size)
        return self.case

    def _rank(self, size: tuple[int, int]) -> tuple[bool, int, int]:
        """Of as many rows the widest is better: that is nearest to the model's own sizes."""
        rows, elements = size
        if self.rows is None:
            return True, rows, elements
        return rows >= self.rows, -abs(rows - self.rows), elements

    def _why_not(self, name: str, arguments: Mapping[str, Any], rows: int) -> str:
        """Why a call is not compared; empty when it is."""
        if not rows:
            return "no rows"
        if self.rows is not None and name in _PREFILL_ONLY:
            return "a kernel of prompts or images, which no decode step calls"
        if self.rows is not None and rows > _DECODE_TOKENS:
            return f"more than {_DECODE_TOKENS} rows are no decode step"
        if name == "fused_sample" and arguments["logits"].shape[1] < _LEAST_VOCABULARY:
            return f"a vocabulary below {_LEAST_VOCABULARY} tokens, of tests of the draws' distribution"
        if name == "norm" and arguments["x"].shape[-1] not in _NORM_WIDTHS:
            return f"a width that is not one of the model's own, {', '.join(map(str, _NORM_WIDTHS))}"
        return ""

    def _finish(self, case: Case) -> None:
        if case.kernels and case.references and case.whole:
            self.kept[case.name, case.variant] = case
            raise _Enough

    def wrap_factory(self, name: str, factory: Callable[..., Any]) -> Callable[..., Any]:
        """Record the arguments of kernel calls within a recorded interface call."""

        @functools.wraps(factory)
        def made(*args: Any, **kwargs: Any) -> Any:
            kernel = factory(*args, **kwargs)

            def called(*values: Any) -> Any:
                if self._inside and self.case is not None:
                    constants = _bound(factory, args, kwargs)
                    self.case.kernels.append(KernelCall(name, factory, constants, kernel, _copied(values)))
                with torch._C.DisableTorchFunction():
                    return kernel(*values)

            return called if callable(kernel) else kernel

        made.pass_configs = {}  # type: ignore[attr-defined]
        return made

    def wrap_interface(self, name: str, function: Callable[..., Any], reference: Callable[..., Any]) -> Any:
        """Record an interface call, and take its arguments for a reference that no test calls."""

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            arguments = _bound(function, args, kwargs)
            case = None if self._inside else self._open(name, arguments)
            if case is None:
                return function(*args, **kwargs)
            case.kernels.clear()
            if name in _BOUND:
                known = inspect.signature(reference).parameters
                case.references = [(reference, (), _copied({k: v for k, v in arguments.items() if k in known}))]
            self._inside = True
            try:
                result = function(*args, **kwargs)
            finally:
                self._inside = False
            # An fp8 norm case calls the bf16 norm first; its reference is the bf16 one and the cast of its result.
            case.whole = name != "norm" or case.variant.startswith("bf16") or arguments.get("fmt") is not None
            self._finish(case)
            return result

        return called

    def wrap_reference(self, name: str, reference: Callable[..., Any]) -> Any:
        """Record a test's own call of a reference."""

        @functools.wraps(reference)
        def called(*args: Any, **kwargs: Any) -> Any:
            case = None if self._inside else self._open(name, _bound(reference, args, kwargs))
            if case is None:
                return reference(*args, **kwargs)
            if not case.references:
                case.references = [(reference, _copied(args), _copied(kwargs))]
                self._finish(case)
            self._inside = True
            try:
                return reference(*args, **kwargs)
            finally:
                self._inside = False

        return called

    def wrap_cast(self, cast: Callable[..., Any]) -> Any:
        """The cast that completes the reference of an fp8 norm."""

        @functools.wraps(cast)
        def called(*args: Any, **kwargs: Any) -> Any:
            case = self.case
            if case is not None and case.name == "norm" and case.variant.startswith("fp8") and not self._inside:
                case.references.append((cast, _copied(args), _copied(kwargs)))
            return cast(*args, **kwargs)

        return called

    # pytest

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        ops = importlib.import_module(_OPS)
        for name, value in list(vars(ops).items()):
            if name.endswith("_tl") and callable(value):
                setattr(ops, name, self.wrap_factory(name, getattr(value, "__wrapped__", value)))
        quant: Any = importlib.import_module("tile_kernels.quant")
        quant.per_token_cast = self.wrap_cast(quant.per_token_cast)
        for module in {item.module for item in session.items}:  # type: ignore[attr-defined]
            for found, reference in list(vars(module).items()):
                name = found.removesuffix("_ref")
                interface = _INTERFACES.get(name, name)
                if found == name or reference.__module__ != module.__name__ or not hasattr(module, interface):
                    continue
                setattr(module, interface, self.wrap_interface(name, getattr(module, interface), reference))
                setattr(module, found, self.wrap_reference(name, reference))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        result = yield
        if nextitem is None or nextitem.path != item.path:
            self.flush()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self.item, self.case = item, None
        try:
            return (yield)
        except _Enough:
            return None
        finally:
            self.item = self.case = None

    def pytest_sessionfinish(self) -> None:
        with self.output.open("a", encoding="utf-8") as file:
            for (name, reason), calls in sorted(self.left_out.items()):
                file.write(json.dumps({"kind": "left out", "name": name, "reason": reason, "calls": calls}) + "\n")

    def flush(self) -> None:
        """Replay the module's cases and write what was measured."""
        torch.set_default_device(None)
        torch.set_num_threads(1)
        gc.collect()
        gc.disable()
        try:
            with torch.no_grad(), torch._C.DisableTorchFunction(), self.output.open("a", encoding="utf-8") as file:
                while self.kept:
                    case = self.kept.pop(next(iter(self.kept)))
                    for row in (replay(case), replay_cache(case)):
                        if row is not None:
                            file.write(json.dumps(row) + "\n")
                            file.flush()
        finally:
            gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    """Take part only when ``kernels.py`` says how."""
    settings = os.environ.get(SETTINGS)
    if settings:
        config.pluginmanager.register(Replayer(json.loads(settings)), "kernel-replay")
