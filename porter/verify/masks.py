"""Write masks: which arguments a kernel may write, and the check that nothing else changed.

Input format, in JSON or as a mapping: ``{factory: {argument: written}}`` in call order, or, for a factory that returns
one of several kernels, ``{factory: [{argument: written}, ...]}``. ``written`` is true, false, or null where the
contract cannot tell (then the argument counts as writable and is reported as unjudged).

Around a call every storage behind a tensor argument is compared byte for byte, the bytes outside the views included;
only the elements of writable views may differ.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from porter.verify.errors import MaskError


class MaskViolation(AssertionError):
    """A kernel wrote what its contract does not let it write, or was called with other arguments than its contract's."""


@dataclass(frozen=True)
class KernelMask:
    """One kernel's arguments in call order; ``written`` as in the input format."""

    arguments: tuple[tuple[str, bool | None], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Argument names."""
        return tuple(name for name, _ in self.arguments)


type Masks = Mapping[str, tuple[KernelMask, ...]]


def read_masks(data: Mapping[str, Any]) -> Masks:
    """Masks from their plain form.

    Raises:
        MaskError: a value is neither a mapping of arguments nor a list of such mappings.
    """
    masks: dict[str, tuple[KernelMask, ...]] = {}
    for factory, value in data.items():
        kernels = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        rows: list[KernelMask] = []
        for kernel in kernels:
            if not isinstance(kernel, Mapping) or not all(
                flag is None or isinstance(flag, bool) for flag in kernel.values()
            ):
                raise MaskError(
                    f"{factory}: expected {{argument: true|false|null}} or a list of such, found {kernel!r}"
                )
            rows.append(KernelMask(tuple((str(name), flag) for name, flag in kernel.items())))
        masks[factory] = tuple(rows)
    return masks


@dataclass(frozen=True)
class BoundArgument:
    """A tensor argument of one call; ``written`` as in the mask."""

    name: str
    tensor: torch.Tensor
    written: bool | None


def parameter_names(kernel: Callable[..., Any]) -> tuple[str, ...] | None:
    """Names of a kernel's parameters, None where they cannot be known."""
    try:
        parameters = inspect.signature(kernel).parameters.values()
    except (TypeError, ValueError):
        return None
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(parameter.name for parameter in parameters) if all(p.kind in plain for p in parameters) else None


def bind(
    masks: Sequence[KernelMask], names: tuple[str, ...] | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[BoundArgument, ...]:
    """Tensor arguments of a call with what their mask says.

    ``names``: the kernel's own parameter names, which pick the mask (their order is theirs); where they are unknown the
    number of arguments does.

    Raises:
        MaskViolation: no mask has these arguments.
    """
    called = len(args) + len(kwargs)
    fitting = [mask for mask in masks if mask.names == names] or [
        mask for mask in masks if names and set(mask.names) == set(names)
    ]
    if not fitting:
        fitting = [mask for mask in masks if called <= len(mask.names) and set(kwargs) <= set(mask.names[len(args) :])]
        if names is not None or not fitting:
            listed = " or ".join("(" + ", ".join(mask.names) + ")" for mask in masks)
            raise MaskViolation(f"kernel called as {names if names is not None else called}, its contract has {listed}")
    order = names if names is not None else fitting[0].names
    given = [*zip(order, args, strict=False), *kwargs.items()]
    if len(args) > len(order):
        raise MaskViolation(f"kernel called with {len(args)} positional arguments, its contract has {len(order)}")
    flags: dict[str, bool | None] = {}
    for mask in fitting:
        for name, flag in mask.arguments:
            known = flags.get(name, False)
            flags[name] = True if flag or known else (None if flag is None or known is None else False)
    return tuple(
        BoundArgument(name, value, flags.get(name)) for name, value in given if isinstance(value, torch.Tensor)
    )


_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _storage_bytes(tensor: torch.Tensor) -> torch.Tensor:
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage, 0, (storage.nbytes(),), (1,))


@dataclass(frozen=True)
class _Layout:
    """A view's elements as integers: 16-byte elements count as two; axes of stride 0 are dropped."""

    kind: torch.dtype
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Layout:
        width = tensor.element_size()
        parts = max(1, width // 8)
        axes = [
            (size, stride * parts)
            for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
            if stride != 0 or size == 0
        ]
        axes += [(parts, 1)] if parts > 1 else []
        offset = int(tensor.storage_offset()) * parts
        return cls(
            _INTEGER[min(width, 8)], offset, tuple(size for size, _ in axes), tuple(stride for _, stride in axes)
        )

    @property
    def may_overlap(self) -> bool:
        """Could two elements lie in the same place? Never said of axes that nest, the usual case."""
        extent = 0
        for stride, size in sorted(
            (stride, size) for size, stride in zip(self.sizes, self.strides, strict=True) if size > 1
        ):
            if stride <= extent:
                return True
            extent += (size - 1) * stride
        return False

    def over(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """These elements in ``storage``."""
        return torch.empty(0, dtype=self.kind, device=storage.device).set_(
            storage, self.offset, self.sizes, self.strides
        )

    def copy(self, source: torch.UntypedStorage, target: torch.UntypedStorage) -> None:
        """Copy these elements; views whose elements overlap one another are copied element by element."""
        if not self.may_overlap:
            self.over(target).copy_(self.over(source))
            return
        offsets = torch.full((1,), self.offset, dtype=torch.int64, device=target.device)
        for size, stride in zip(self.sizes, self.strides, strict=True):
            offsets = (offsets[:, None] + torch.arange(size, device=target.device) * stride).reshape(-1)
        offsets = torch.unique(offsets)
        flat_target = torch.empty(0, dtype=self.kind, device=target.device).set_(target)
        flat_target[offsets] = torch.empty(0, dtype=self.kind, device=source.device).set_(source)[offsets]


def _covers_storage(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous() and tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


@dataclass(frozen=True)
class _StorageState:
    views: tuple[BoundArgument, ...]
    before: torch.Tensor

    def violations(self) -> list[str]:
        now = _storage_bytes(self.views[0].tensor)
        if now.numel() != self.before.numel():
            return [f"{self.views[0].name}: the storage was resized from {self.before.numel()} to {now.numel()} bytes"]
        old, new = self.before.untyped_storage(), now.untyped_storage()
        layouts = [(view, _Layout.of(view.tensor)) for view in self.views if view.tensor.numel()]
        for view, layout in layouts:
            if view.written is not False:
                layout.copy(new, old)
        if torch.equal(self.before, now):
            return []
        changed = (self.before != now).nonzero().flatten()
        first, count = int(changed[0]), int(changed.numel())
        owners = [
            view.name
            for view, layout in layouts
            if view.written is False and not torch.equal(layout.over(old), layout.over(new))
        ]
        where = (
            f"read-only argument {', '.join(owners)}"
            if owners
            else f"memory outside {', '.join(v.name for v in self.views)}"
        )
        return [f"{where} was written: {count} bytes of its storage changed, the first at byte {first}"]


class WriteGuard:
    """The state of all storages behind a call's arguments, taken before it."""

    def __init__(self, arguments: Iterable[BoundArgument]) -> None:
        groups: dict[int, list[BoundArgument]] = {}
        for argument in arguments:
            if argument.tensor.device.type != "meta":
                groups.setdefault(argument.tensor.untyped_storage()._cdata, []).append(argument)
        self._views = [
            tuple(group)
            for group in groups.values()
            if not any(view.written is not False and _covers_storage(view.tensor) for view in group)
            and group[0].tensor.untyped_storage().nbytes()
        ]
        self.size = sum(views[0].tensor.untyped_storage().nbytes() for views in self._views)
        self._states: list[_StorageState] = []

    def take(self) -> None:
        """Copy what may not change."""
        self._states = [_StorageState(views, _storage_bytes(views[0].tensor).clone()) for views in self._views]

    def violations(self) -> list[str]:
        """What changed and may not have, one text a storage."""
        return [text for state in self._states for text in state.violations()]
