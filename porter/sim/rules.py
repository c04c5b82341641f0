"""The rules of strict mode: functions from an operator, its result or a copy to what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from porter.sim.operators import has_kernel, rewrite_of
from porter.sim.watchers import Call, Copy


@dataclass(frozen=True, slots=True)
class Hit:
    """A finding before its place is known. ``about``: the strided tensor that was written."""

    code: str
    operator: str
    detail: str = ""
    rewrite: str = ""
    about: torch.Tensor | None = None


def _named(*names: str) -> frozenset[torch.dtype]:
    return frozenset(getattr(torch, name) for name in names if hasattr(torch, name))


INTEGERS = _named("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "bool")
WIDE_INTEGERS = _named("int64", "uint64")
FNUZ = _named("float8_e4m3fnuz", "float8_e5m2fnuz")
_FP8 = _named("float8_e4m3fn")
_SHIFTED = _named("int32", "uint32")
_SHAPED_BY_VALUES = frozenset({
    "nonzero", "masked_select", "unique_dim", "_unique2", "unique_consecutive", "unique_dim_consecutive", "bincount",
    "histogram",
})  # fmt: skip
_READS = frozenset({"_local_scalar_dense", "equal", "is_nonzero", "item"})
_PRODUCTS = frozenset({
    "mm", "bmm", "addmm", "addmv", "mv", "dot", "vdot", "baddbmm", "addbmm", "_grouped_mm", "matmul", "linear", "_int_mm",
    "convolution",
})  # fmt: skip
_BY_INDEX = frozenset({"scatter_add", "index_add", "scatter_reduce", "index_reduce", "put"})
_GATHERS = frozenset({"gather", "scatter", "scatter_add", "scatter_reduce"})
# Where a 64-bit index is asked for by torch itself, or is what torch gives.
_TAKES_INDEX = _GATHERS | {
    "index", "_index_put_impl", "index_put", "index_select", "index_copy", "index_add", "index_fill", "embedding", "take",
    "put", "index_reduce", "take_along_dim",
}  # fmt: skip
_GIVES_INDEX = frozenset({
    "topk", "sort", "argsort", "max", "min", "argmax", "argmin", "kthvalue", "median", "mode", "cummax", "cummin", "multinomial",
    "nonzero", "nonzero_static", "searchsorted", "bucketize", "_unique2", "unique_dim", "unique_consecutive", "bincount",
})  # fmt: skip
# They move bytes and compute nothing: an fp8 operand is stored, not used.
_MOVES = frozenset({
    "index", "index_select", "index_copy", "_index_put_impl", "index_put", "cat", "stack", "fill", "zero", "gather", "flip",
    "repeat", "constant_pad_nd", "clone", "copy", "where", "masked_fill", "resize", "set", "index_fill", "embedding",
    "_local_scalar_dense",
})  # fmt: skip
# Their integers are bounds, not values: the largest one means "to the end".
_BOUNDS = frozenset({"slice_backward", "slice_scatter", "random", "nonzero_static"})
_INT32 = 1 << 31


def _types(tensors: list[torch.Tensor]) -> set[torch.dtype]:
    return {tensor.dtype for tensor in tensors}


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def before(call: Call, operators: frozenset[str]) -> Iterator[Hit]:
    """What can be said before an operator runs."""
    types = _types(call.inputs)
    name, base = call.full, call.base
    if base in _READS:
        yield Hit("SIM101", name)
    if base in _SHAPED_BY_VALUES or _repeats_by_values(call):
        yield Hit("SIM108", name)
    yield from _masks(call)
    namespace = call.name.partition("::")[0]
    if not has_kernel(operators, namespace, base, call.overload) and base not in _SHAPED_BY_VALUES:
        yield Hit("SIM104", name, rewrite=rewrite_of(base))
    yield from _types_refused(call, types)
    yield from _forms_refused(call)
    yield from _strided(call)
    yield from _constants(call)


def _types_refused(call: Call, types: set[torch.dtype]) -> Iterator[Hit]:
    name, base = call.full, call.base
    if torch.float64 in types and base not in _READS:
        yield Hit("SIM106", name)
    if any(dtype.is_complex for dtype in types):
        yield Hit("NCC_EVRF004", name)
    if types & FNUZ:
        yield Hit("NCC_EVRF005", name, _short(next(iter(types & FNUZ))))
    if types & _FP8 and base not in _MOVES:
        yield Hit("NCC_EVRF051", name, _short(next(iter(types & _FP8))))
    if base not in _TAKES_INDEX and base not in _READS and base not in _GIVES_INDEX:
        wide = types & WIDE_INTEGERS
        if wide and not any(tensor.dtype in WIDE_INTEGERS for tensor in call.written):
            yield Hit("SIM105", name, f"{_short(next(iter(wide)))} operand")
    elif base in ("index", "index_select", "gather", "flip", "cat") and call.inputs[0].dtype in WIDE_INTEGERS:
        yield Hit("SIM105", name, f"{_short(call.inputs[0].dtype)} data")


def _first(call: Call) -> torch.Tensor | None:
    for value in call.args[:1]:
        if isinstance(value, torch.Tensor):
            return value
    return call.inputs[0] if call.inputs else None


def _forms_refused(call: Call) -> Iterator[Hit]:
    name, base = call.full, call.base
    first = _first(call)
    if first is None:
        return
    dtype = first.dtype
    if base == "topk" and dtype in INTEGERS:
        yield Hit("NCC_EVRF013", name, _short(dtype))
    elif base in _PRODUCTS and any(one.dtype in INTEGERS for one in _factors(call) if one.dim() > 0):
        yield Hit("NCC_EVRF035", name, _short(dtype))
    elif base in ("bitwise_right_shift", "rshift", "irshift"):
        if dtype in INTEGERS and dtype not in _SHIFTED:
            yield Hit("NCC_EVRF022", name, _short(dtype))
    elif (base in _BY_INDEX or _accumulates(call)) and dtype in INTEGERS:
        yield Hit("NCC_EVRF016", name, _short(dtype))
    elif base == "pow" and _types(call.inputs) & WIDE_INTEGERS:
        yield Hit("NCC_EVRF062", name, _short(dtype))
    if base in _GATHERS:
        index = call.argument(2, "index")
        if isinstance(index, torch.Tensor) and index.dtype in WIDE_INTEGERS and _is_expanded(index):
            yield Hit("SIM110", name, f"index of strides {tuple(index.stride())}")


def _factors(call: Call) -> list[torch.Tensor]:
    """What a product multiplies and adds; the third argument of a grouped one says where groups end."""
    return call.inputs[: 2 if call.base == "_grouped_mm" else 3]


def _is_expanded(tensor: torch.Tensor) -> bool:
    return any(step == 0 and extent > 1 for step, extent in zip(tensor.stride(), tensor.shape, strict=True))


def _accumulates(call: Call) -> bool:
    if call.base == "scatter":
        return "reduce" in call.overload
    return call.base in ("_index_put_impl", "index_put") and bool(call.argument(3, "accumulate", False))


def _repeats_by_values(call: Call) -> bool:
    if call.base != "repeat_interleave":
        return False
    return call.kwargs.get("output_size") is None and not any(isinstance(one, int) for one in call.args[1:])


def _masks(call: Call) -> Iterator[Hit]:
    """Boolean masks as indices. One mask of the whole shape and one number is a masked fill."""
    if call.base not in ("_index_put_impl", "index_put", "index"):
        return
    indices = [one for one in call.argument(1, "indices", ()) or () if isinstance(one, torch.Tensor)]
    masks = [one for one in indices if one.dtype in (torch.bool, torch.uint8)]
    if not masks:
        return
    target, values = call.args[0], call.argument(2, "values")
    is_fill = (
        call.base != "index"
        and len(indices) == 1
        and isinstance(values, torch.Tensor)
        and values.numel() == 1
        and masks[0].dim() == target.dim()
        and not call.argument(3, "accumulate", False)
    )
    if not is_fill:
        yield Hit("SIM108", call.full, "a boolean mask as index")


def is_strided_view(tensor: torch.Tensor) -> bool:
    """Is it a part of its storage that is not one piece, so that a write copies the whole?"""
    if tensor.numel() <= 1 or tensor.is_contiguous():
        return False
    expected = 1
    for step, extent in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if extent > 1:
            if step != expected:
                return True
            expected *= extent
    return False


def dense_run(tensor: torch.Tensor) -> int:
    """Elements that lie side by side in memory, from the innermost dimension outward.

    >>> dense_run(torch.empty(4, 6)), dense_run(torch.empty(4, 6)[:, :2])
    (24, 2)
    """
    run = 1
    for step, extent in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if extent > 1:
            if step != run:
                break
            run *= extent
    return run


def _strided_hit(operator: str, tensor: torch.Tensor) -> Hit:
    return Hit("SIM107", operator, f"shape {tuple(tensor.shape)}, strides {tuple(tensor.stride())}", about=tensor)


def _strided(call: Call) -> Iterator[Hit]:
    for tensor in call.written:
        if is_strided_view(tensor):
            yield _strided_hit(call.full, tensor)


def _constants(call: Call) -> Iterator[Hit]:
    if call.base in _BOUNDS:
        return
    for value in (*call.args, *call.kwargs.values()):
        if isinstance(value, int) and not isinstance(value, bool) and not -_INT32 <= value < 2 * _INT32:
            yield Hit("NCC_ESFH002", call.full, str(value))


def after(call: Call) -> Iterator[Hit]:
    """What can be said of the result: 64-bit data that was made here."""
    for tensor in call.outputs:
        if tensor.dtype in WIDE_INTEGERS and call.base not in _GIVES_INDEX | {
            "index",
            "index_select",
            "gather",
            "flip",
            "cat",
        }:
            yield Hit("SIM105", call.full, f"{_short(tensor.dtype)} result")
            return
        if tensor.dtype == torch.float64 and torch.float64 not in _types(call.inputs):
            yield Hit("SIM106", call.full, "float64 result")
            return


def copy(move: Copy) -> Iterator[Hit]:
    """What can be said of a copy."""
    source, target = move.source, move.target
    if move.kind == "to-host":
        yield Hit("SIM102", "aten::copy_", _described(source))
    elif move.kind == "to-device":
        yield Hit("SIM103", "aten::copy_", _described(source))
    if move.kind == "on-device":
        yield from _casts(source.dtype, target.dtype)
    elif move.kind == "to-device" and target.dtype in WIDE_INTEGERS:
        yield Hit("SIM105", "aten::copy_", f"{_short(target.dtype)} upload")
    if move.kind != "to-host":
        if target.dtype == torch.float64:
            yield Hit("SIM106", "aten::copy_", "float64")
        if target.dtype.is_complex:
            yield Hit("NCC_EVRF004", "aten::copy_", _short(target.dtype))
        if target.dtype in FNUZ:
            yield Hit("NCC_EVRF005", "aten::copy_", _short(target.dtype))
        if is_strided_view(target):
            yield _strided_hit("aten::copy_", target)


def _casts(source: torch.dtype, target: torch.dtype) -> Iterator[Hit]:
    """A cast down from 64 bits is the way out of them and not a finding."""
    if target in WIDE_INTEGERS and source != target:
        yield Hit("SIM105", "aten::_to_copy", f"{_short(source)} to {_short(target)}")
    elif target in WIDE_INTEGERS:
        yield Hit("SIM105", "aten::copy_", f"{_short(target)} data")


def _described(tensor: torch.Tensor) -> str:
    return f"{_short(tensor.dtype)} {tuple(tensor.shape)}"
