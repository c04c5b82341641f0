"""Operators that the engine or its vendor packages register for CUDA are registered for the device."""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from deepinfer.neuron_ops.transfer_to_neuron.backend import Backend
from deepinfer.neuron_ops.transfer_to_neuron.patcher import Patcher
from deepinfer.neuron_ops.transfer_to_neuron.tensors import ENGINE_MODULES


def patch(patcher: Patcher, backend: Backend) -> None:
    """Wrap ``Library.impl``: ``"CUDA"`` becomes the target's key, for the engine's own registrations alone."""
    impl = torch.library.Library.impl
    key = "PrivateUse1" if backend.target == "neuron" else "CPU"

    @functools.wraps(impl)
    def mapped_impl(self: Any, op_name: Any, fn: Any, dispatch_key: str = "", **kwargs: Any) -> Any:
        if dispatch_key == "CUDA" and _asker() in ENGINE_MODULES:
            dispatch_key = key
        return impl(self, op_name, fn, dispatch_key, **kwargs)

    patcher.set(torch.library.Library, "impl", mapped_impl)


def _asker() -> str:
    """Top package of the nearest caller outside torch."""
    frame = sys._getframe(2)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).split(".")[0]
        if package != "torch":
            return package
        frame = frame.f_back  # type: ignore[assignment]
    return ""
