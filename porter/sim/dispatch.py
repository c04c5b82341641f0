"""The device's one kernel: every operator without one of its own runs on the CPU, on the same memory.

It is registered as the boxed fallback of the device's dispatch key, so composites, autograd and autocast above it are
torch's own. Results are handed back as device tensors; a tensor that was written is handed back itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from porter.sim.errors import DeviceLimitError
from porter.sim.names import NAME
from porter.sim.storage import on_device, to_device, to_host
from porter.sim.versions import internal
from porter.sim.watchers import WATCHERS, Call

_CPU = torch.device("cpu")
_Plain: Any = internal("_C.DisableTorchFunction", "kernels that default devices do not touch")


@dataclass(frozen=True, slots=True)
class Plan:
    """What an operator's schema says: its names, and what it writes."""

    name: str
    overload: str
    base: str
    positional_writes: tuple[int, ...]
    named_writes: tuple[str, ...]
    outs: tuple[str, ...]


_PLANS: dict[Any, Plan] = {}


def base_name(name: str) -> str:
    """The name of the operation itself.

    >>> base_name("aten::index_add_"), base_name("aten::__rshift__"), base_name("aten::_softmax")
    ('index_add', 'rshift', '_softmax')
    """
    word = name.rpartition("::")[2]
    if word.startswith("__") and word.endswith("__"):
        return word.strip("_")
    return word.rstrip("_")


def plan_of(op: Any) -> Plan:
    """The plan of an overload, made once."""
    plan = _PLANS.get(op)
    if plan is None:
        schema = op._schema
        arguments = schema.arguments
        positional = [one for one in arguments if not one.kwarg_only]
        writes = [one for one in arguments if one.alias_info is not None and one.alias_info.is_write]
        plan = _PLANS[op] = Plan(
            name=schema.name,
            overload=schema.overload_name,
            base=base_name(schema.name),
            positional_writes=tuple(at for at, one in enumerate(positional) if one in writes),
            named_writes=tuple(one.name for one in writes),
            outs=tuple(one.name for one in arguments if one.is_out),
        )
    return plan


class _Walk:
    """One pass over arguments: device tensors become CPU tensors on the same memory."""

    __slots__ = ("back", "host", "inputs", "operator")

    def __init__(self, operator: str) -> None:
        self.operator = operator
        self.inputs: list[torch.Tensor] = []
        self.host: dict[int, torch.Tensor] = {}  # by id of the device tensor, which the caller holds
        self.back: dict[int, torch.Tensor] = {}  # by id of the CPU tensor, which ``host`` holds

    def map(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            kind = value.device.type
            if kind == NAME:
                known = self.host.get(id(value))
                if known is None:
                    known = to_host(value)
                    self.host[id(value)] = known
                    self.back[id(known)] = value
                    self.inputs.append(value)
                return known
            if value.dim() and kind != "meta":
                raise DeviceLimitError(
                    f"{self.operator}: expected all tensors to be on the same device, but found {NAME} and {value.device}",
                    fix=f"move the operand with .to({NAME!r}); only 0-dimensional CPU tensors are taken as numbers",
                )
            return value
        if isinstance(value, (list, tuple)):
            return type(value)([self.map(one) for one in value]) if value else value
        if isinstance(value, torch.device) and value.type == NAME:
            return _CPU
        return value


def _device_index(args: Any, kwargs: Any) -> int:
    device = kwargs.get("device")
    return (device.index or 0) if isinstance(device, torch.device) else 0


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [leaf for one in value for leaf in _flat(one)]
    return []


def _written(plan: Plan, args: Any, kwargs: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for at in plan.positional_writes:
        if at < len(args):
            found += _flat(args[at])
    for name in plan.named_writes:
        if name in kwargs:
            found += _flat(kwargs[name])
    return found


def fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run ``op`` on the CPU, in place on the device's memory.

    Raises:
        DeviceLimitError: a CPU tensor with dimensions among the operands.
    """
    with _Plain():
        return _run(op, args, kwargs)


def _run(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    plan = plan_of(op)
    walk = _Walk(plan.name)
    # A number that stands for a tensor stays a number: a tensor of it would count in type promotion.
    host_args = [walk.map(value) for value in args]
    host_kwargs = {name: walk.map(value) for name, value in kwargs.items()}
    call: Call | None = None
    if WATCHERS:
        written = _written(plan, args, kwargs)
        call = Call(plan.name, plan.overload, plan.base, args, kwargs, walk.inputs, written, plan.outs)
        for watcher in tuple(WATCHERS):
            watcher.starts(call)
    if plan.outs:
        result = _call_out(op, plan, walk, kwargs, host_args, host_kwargs)
    else:
        result = op(*host_args, **host_kwargs)
    index = walk.inputs[0].device.index if walk.inputs else _device_index(args, kwargs)
    wrapped = _wrap(result, walk.back, index)
    if call is not None:
        call.outputs = _flat(wrapped)
        for watcher in tuple(WATCHERS):
            watcher.ends(call)
    return wrapped


def _call_out(
    op: Any, plan: Plan, walk: _Walk, kwargs: dict[str, Any], host_args: list[Any], host_kwargs: dict[str, Any]
) -> Any:
    """``out=`` arguments: the CPU kernel cannot resize memory it does not own, so a scratch tensor takes its place."""
    outs = {name: kwargs[name] for name in plan.outs if on_device(kwargs.get(name))}
    replaced: dict[str, torch.Tensor] = {}
    for name, tensor in outs.items():
        if tensor.numel() == 0:
            replaced[name] = host_kwargs[name] = torch.empty(0, dtype=tensor.dtype, device=_CPU)
    try:
        result = op(*host_args, **host_kwargs)
    except RuntimeError as error:
        if not outs or "resiz" not in str(error):
            raise
        for name, tensor in outs.items():
            replaced[name] = host_kwargs[name] = torch.empty(0, dtype=tensor.dtype, device=_CPU)
        result = op(*host_args, **host_kwargs)
    for name, scratch in replaced.items():
        tensor = outs[name]
        if scratch.shape != tensor.shape:
            tensor.resize_(scratch.shape)
        if scratch.numel():
            to_host(tensor).copy_(scratch)
        walk.back[id(scratch)] = tensor
        walk.host[id(scratch)] = scratch
    return result


def _wrap(value: Any, back: dict[int, torch.Tensor], index: int) -> Any:
    if isinstance(value, torch.Tensor):
        known = back.get(id(value))
        return to_device(value, index) if known is None else known
    if isinstance(value, (list, tuple)):
        return type(value)([_wrap(one, back, index) for one in value])
    return value


# Of the operators with a device kernel, those that torch would compose otherwise, and so of writes into views or of copies to
# the host that the device does not make.
_WHOLE = ("_grouped_mm", "constant_pad_nd", "repeat", "masked_fill.Scalar", "masked_fill.Tensor")


def structured() -> dict[str, Any]:
    """Overloads that torch would compose for this device, of an ``out=`` one or of others: they get the kernel themselves,
    which keeps their names, and is one dispatch instead of several."""
    has: Any = internal("_C._dispatch_has_kernel_for_dispatch_key", "structured operators")
    names: list[str] = internal("_C._dispatch_get_all_op_names", "structured operators")()
    found = {}
    for name in sorted(names):
        if (
            name.removeprefix("aten::") in _WHOLE
            or name.startswith("aten::")
            and has(name, "CompositeExplicitAutogradNonFunctional")
            and has(name, "CPU")
        ):
            word = name.removeprefix("aten::")
            packet, _, overload = word.partition(".")
            found[word] = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return found
