"""Checks that every kernel override must pass, whatever it computes.

Use from a test in this folder::

    from harness import check_kernel, guard

    def test_gather() -> None:
        x, index, y = guard(torch.randn(7, 3)), guard(torch.tensor([1, -1])), guard(torch.empty(2, 3))
        check_kernel(gather_tl(3, torch.float32, torch.int32, 3), x, index, y, written=("Y",))
        assert torch.equal(y, ...)

- ``guard(tensor, strides=None)``: the tensor's values inside a larger storage whose other bytes hold a pattern.
- ``run_guarded(kernel, *args, written=...)``: runs the kernel once on ``args``; fails when it returns a value,
  changes a tensor's metadata or storage, or changes one byte that is not an element of a written argument.
- ``check_fake``: runs under ``FakeTensorMode(shape_env=None)``: no host sync, no data-dependent shape.
- ``check_fullgraph``: traces as one graph with ``torch.compile(fullgraph=True, dynamic=False)``; same bytes as eager.
- ``check_mutations``: the exported, decomposed graph mutates no input but the written ones.
- ``check_kernel``: all of the above; the arguments hold the kernel's results afterwards.
- ``wrap_int32``: an int as int32 arithmetic leaves it, for oracles in plain Python.
- ``count_ops``, ``new_bytes``: ATen ops dispatched and bytes newly allocated by one call (views are free).
- ``work``: both, and the bytes that the call's ops touch: what must not grow with a cache.
- ``wide_ops``: the ops of one call that make a 64-bit or complex tensor, which the device does not compute with.

``written`` names arguments as the kernel's signature does. The gates work on clones and leave ``args`` alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Kernel = Callable[..., Any]

GUARD_BYTES = 256
_PATTERN = 0xA5
_WIDE = (torch.int64, torch.uint64, torch.float64, torch.complex64, torch.complex128)


def guard(tensor: torch.Tensor, strides: Sequence[int] | None = None) -> torch.Tensor:
    """Copy ``tensor`` into a storage padded by ``GUARD_BYTES`` of a fixed pattern on both ends.

    ``strides`` (elements, one an axis) lays the copy out with gaps, which hold the pattern too; the default is
    contiguous.
    """
    strides = tuple(strides) if strides is not None else _contiguous_strides(tensor.shape)
    assert len(strides) == tensor.ndim, f"expected {tensor.ndim} strides, got {len(strides)}"
    span = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, strides, strict=True)) if tensor.numel() else 0
    raw = torch.full((span * tensor.itemsize + 2 * GUARD_BYTES,), _PATTERN, dtype=torch.uint8, device=tensor.device)
    inner = raw[GUARD_BYTES : GUARD_BYTES + span * tensor.itemsize].view(tensor.dtype)
    out = inner.as_strided(tensor.shape, strides)
    out.copy_(tensor)
    return out


def _contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@dataclass(frozen=True)
class _Header:
    """What a kernel may not change of a tensor it is given."""

    shape: torch.Size
    strides: tuple[int, ...]
    dtype: torch.dtype
    data_ptr: int
    storage_ptr: int

    @staticmethod
    def of(tensor: torch.Tensor) -> _Header:
        storage = tensor.untyped_storage().data_ptr()
        return _Header(tensor.shape, tensor.stride(), tensor.dtype, tensor.data_ptr(), storage)


def wrap_int32(value: int) -> int:
    """``value`` as int32 arithmetic leaves it."""
    return (value + 2**31) % 2**32 - 2**31


def argument_names(kernel: Kernel) -> list[str]:
    """Names of the kernel's parameters, in call order."""
    return list(inspect.signature(kernel).parameters)


def _named(kernel: Kernel, args: Sequence[Any]) -> dict[str, Any]:
    names = argument_names(kernel)
    assert len(args) == len(names), f"kernel takes {names}, got {len(args)} arguments"
    return dict(zip(names, args, strict=True))


def storage_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage behind ``tensor`` as a uint8 view ``[nbytes]``."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _element_bytes(tensor: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """View of ``mask`` (a bool for each byte of the tensor's storage) selecting the bytes of its elements."""
    size = tensor.itemsize
    shape = (*tensor.shape, size)
    strides = (*(step * size for step in tensor.stride()), 1)
    return mask.as_strided(shape, strides, tensor.storage_offset() * size)


def run_guarded(kernel: Kernel, *args: Any, written: Collection[str]) -> None:
    """Run ``kernel(*args)``; fail when anything but the elements of the ``written`` arguments changed.

    Arguments may share a storage: a byte may change when it belongs to an element of any written argument.
    """
    named = _named(kernel, args)
    unknown = set(written) - set(named)
    assert not unknown, f"written names {sorted(unknown)} are not among the kernel's arguments {list(named)}"
    tensors = {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}
    headers = {name: _Header.of(tensor) for name, tensor in tensors.items()}
    before = {header.storage_ptr: storage_bytes(tensors[name]).clone() for name, header in headers.items()}
    allowed = {pointer: torch.zeros(image.shape, dtype=torch.bool) for pointer, image in before.items()}
    for name in written:
        if name in tensors:
            _element_bytes(tensors[name], allowed[headers[name].storage_ptr]).fill_(True)

    result = kernel(*args)

    assert result is None, f"a kernel writes in place and returns None, got {type(result).__name__}"
    for name, header in headers.items():
        now = _Header.of(tensors[name])
        assert now == header, f"{name}: shape, strides, dtype or storage changed from {header} to {now}"
        changed = (storage_bytes(tensors[name]) != before[header.storage_ptr]) & ~allowed[header.storage_ptr]
        count = int(changed.sum())
        assert (
            not count
        ), f"{name}: {count} bytes of its storage changed outside of the written arguments {sorted(written)}"


def clone_args(args: Sequence[Any]) -> list[Any]:
    """Clones with the same strides; arguments that share a storage share one clone of it."""
    copies: dict[int, torch.Tensor] = {}
    out: list[Any] = []
    for value in args:
        if not isinstance(value, torch.Tensor):
            out.append(value)
            continue
        pointer = value.untyped_storage().data_ptr()
        if pointer not in copies or pointer == 0:
            copies[pointer] = storage_bytes(value).clone()
        whole = torch.empty(0, dtype=value.dtype, device=value.device)
        out.append(whole.set_(copies[pointer].untyped_storage(), value.storage_offset(), value.shape, value.stride()))
    return out


def check_fake(kernel: Kernel, *args: Any) -> None:
    """Fail when the kernel reads a value on the host or makes a shape that depends on data."""
    mode = FakeTensorMode(shape_env=None)
    fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in clone_args(args)]
    with mode:
        assert kernel(*fakes) is None


def check_fullgraph(kernel: Kernel, *args: Any) -> None:
    """Fail unless the kernel traces as one static graph that leaves the same bytes as the eager call."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    eager_args, traced_args = clone_args(args), clone_args(args)
    kernel(*eager_args)
    torch._dynamo.reset()
    torch.compile(kernel, fullgraph=True, dynamic=False, backend=backend)(*traced_args)
    assert len(graphs) <= 1, f"expected one graph, got {len(graphs)}"
    for name, eager, traced in zip(argument_names(kernel), eager_args, traced_args, strict=True):
        if isinstance(eager, torch.Tensor):
            assert torch.equal(storage_bytes(eager), storage_bytes(traced)), f"{name}: traced and eager results differ"


class _AsModule(torch.nn.Module):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, *args: Any) -> None:
        self.kernel(*args)


def exported_mutations(kernel: Kernel, *args: Any) -> set[str]:
    """Names of the arguments that the exported and decomposed graph mutates."""
    program = torch.export.export(_AsModule(kernel), tuple(clone_args(args)), strict=False).run_decompositions()
    signature = program.graph_signature
    names = argument_names(kernel)
    position = {spec: names[i] for i, spec in enumerate(signature.user_inputs) if isinstance(spec, str)}
    return {position[target] for target in signature.user_inputs_to_mutate.values()}


def check_mutations(kernel: Kernel, *args: Any, written: Collection[str], optional: Collection[str] = ()) -> None:
    """Fail unless the exported graph mutates exactly ``written``, save ``optional`` ones, which it may leave alone.

    Arguments of zero elements are not counted, nor those that are not tensors.
    """
    named = _named(kernel, args)
    live = {name for name, value in named.items() if isinstance(value, torch.Tensor) and value.numel()}
    found = exported_mutations(kernel, *args) & live
    expected = set(written) & live
    assert expected - set(optional) <= found <= expected, f"expected {sorted(expected)} mutated, found {sorted(found)}"


_seen: set[tuple[Any, ...]] = set()


def _kind(kernel: Kernel, args: Sequence[Any]) -> tuple[Any, ...]:
    """What may change the graph that a kernel traces to, sizes aside: its code, its constants, its arguments' make."""
    cells = tuple(repr(cell.cell_contents) for cell in kernel.__closure__ or ())
    make = tuple(
        (a.dtype, a.ndim, a.is_contiguous(), a.numel() == 0) if isinstance(a, torch.Tensor) else type(a) for a in args
    )
    return kernel.__module__, kernel.__qualname__, cells, make


def check_kernel(
    kernel: Kernel, *args: Any, written: Collection[str], optional: Collection[str] = (), gates: bool = True
) -> None:
    """Run all checks of this module; afterwards ``args`` hold what one call of the kernel leaves.

    The gates, which are slow, run once for each kind of call (see ``_kind``). ``gates=False`` leaves them out.
    """
    kind = _kind(kernel, args)
    if gates and kind not in _seen:
        _seen.add(kind)
        check_fake(kernel, *args)
        check_fullgraph(kernel, *args)
        check_mutations(kernel, *args, written=written, optional=optional)
    run_guarded(kernel, *args, written=written)


# Ops that touch of their first argument only what their indices name.
_BY_INDEX = {
    "index",
    "index_select",
    "gather",
    "index_put_",
    "_index_put_impl_",
    "index_add_",
    "index_copy_",
    "scatter_",
}


def _touched(func: Any, args: Any, kwargs: Any, out: Any) -> int:
    """Bytes that an op reads and writes, each tensor once."""
    by_index = func._schema.name.removeprefix("aten::") in _BY_INDEX
    seen = {id(leaf): leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, torch.Tensor)}
    if by_index:
        seen.pop(id(args[0]), None)
    return sum(leaf.numel() * leaf.itemsize for leaf in seen.values())


class _Recorder(TorchDispatchMode):
    """Counts dispatched ops that do work, and the bytes of the storages they create."""

    def __init__(self, known: set[int]) -> None:
        super().__init__()
        self.ops: list[str] = []
        self.wide: list[str] = []
        self.bytes = 0
        self.touched = 0
        self._known = known
        self._alive: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.is_view:
            return out
        self.ops.append(str(func))
        self.touched += _touched(func, args, kwargs or {}, out)
        leaves = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        if any(leaf.dtype in _WIDE for leaf in leaves):
            self.wide.append(str(func))
        for leaf in leaves:
            if leaf.untyped_storage().data_ptr() not in self._known:
                self._known.add(leaf.untyped_storage().data_ptr())
                self._alive.append(leaf)
                self.bytes += leaf.untyped_storage().nbytes()
        return out


def _record(kernel: Kernel, args: Sequence[Any]) -> _Recorder:
    values = clone_args(args)
    recorder = _Recorder({a.untyped_storage().data_ptr() for a in values if isinstance(a, torch.Tensor)})
    with recorder:
        kernel(*values)
    return recorder


def count_ops(kernel: Kernel, *args: Any) -> list[str]:
    """Names of the ATen ops that one call dispatches, views left out."""
    return _record(kernel, args).ops


@dataclass(frozen=True)
class Work:
    """What one call does: ``ops`` in order, bytes of new storages and bytes that the ops touch."""

    ops: tuple[str, ...]
    made: int
    touched: int


def work(kernel: Kernel, *args: Any) -> Work:
    """The work of one call. A cache counts only by the rows that are read or written by index, or as a slice."""
    recorder = _record(kernel, args)
    return Work(tuple(recorder.ops), recorder.bytes, recorder.touched)


def wide_ops(kernel: Kernel, *args: Any) -> list[str]:
    """Names of the ops of one call, views left out, that return a 64-bit or complex tensor."""
    return _record(kernel, args).wide


def new_bytes(kernel: Kernel, *args: Any) -> int:
    """Bytes of all storages that one call creates: the part of its cost that must not grow with a cache."""
    return _record(kernel, args).bytes
