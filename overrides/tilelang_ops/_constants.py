"""Constants of kernels as tensors: made once for each device, not once for each call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch


def _plain(tensor: torch.Tensor) -> bool:
    """Whether a call is a real one: traced ones (``torch.compile``, ``torch.export``, fake tensors) share no tensor with it."""
    return type(tensor) is torch.Tensor and not torch.compiler.is_compiling()


class Constant:
    """A small tensor of given values that lives where it is used. A traced graph makes its own."""

    def __init__(self, values: Sequence[object], dtype: torch.dtype) -> None:
        self._values = list(values)
        self._dtype = dtype
        self._made: dict[torch.device, torch.Tensor] = {}

    def beside(self, tensor: torch.Tensor) -> torch.Tensor:
        """The constant on ``tensor``'s device. It must not be written to."""
        found = self._made.get(tensor.device) if _plain(tensor) else None
        if found is not None:
            return found
        # The one upload, at the first call on a device.
        # NEURON: host sync once for each device: the values are uploaded and kept
        made = torch.tensor(self._values, dtype=self._dtype, device=tensor.device)
        if _plain(tensor) and _plain(made):
            self._made[tensor.device] = made
        return made


class Scalars:
    """int32 operands that are known when a kernel is built: torch wraps a number for each op, but takes these as they are."""

    def __init__(self, *values: int) -> None:
        self._numbers = {value: value for value in values}
        self._values = values
        self._constant = Constant(values, torch.int32)
        self._made: dict[torch.device, Mapping[int, torch.Tensor]] = {}

    def beside(self, tensor: torch.Tensor) -> Mapping[int, torch.Tensor | int]:
        """For each value the tensor [] that holds it on ``tensor``'s device, or, in a traced call, the value itself."""
        if not _plain(tensor):
            return self._numbers
        found = self._made.get(tensor.device)
        if found is None:
            found = dict(zip(self._values, self._constant.beside(tensor).unbind(0), strict=True))
            self._made[tensor.device] = found
        return found
