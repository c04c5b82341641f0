"""Registers the device with torch, once a process."""

from __future__ import annotations

import functools
from typing import Any

import torch

from porter.sim import autocast, dispatch, holes, primitives, runtime, versions
from porter.sim.errors import SimError
from porter.sim.names import KEY, NAME

_libraries: list[Any] = []


def registered() -> bool:
    """Is the device there?"""
    return bool(_libraries)


def register(devices: int = 1) -> None:
    """Make ``torch.device("neuron")`` the simulated one.

    Raises:
        SimError: another PrivateUse1 device (the real one, say) is there already, or ``devices`` is less than 1.
        TorchInternalError: torch lacks something needed.
    """
    if devices < 1:
        raise SimError(f"{devices} devices", fix="at least 1")
    runtime.configure(devices)
    if registered():
        return
    versions.check()
    name = torch._C._get_privateuse1_backend_name()
    if name != "privateuseone":
        raise SimError(
            f"this process has a device named {name!r} already, and torch takes one",
            fix="simulate in a process of its own, with TORCH_DEVICE_BACKEND_AUTOLOAD=0 where torch_neuronx is installed",
        )
    setup = versions.internal("utils.backend_registration._setup_privateuseone_for_python_backend")
    setup(NAME, backend_module=runtime.make_module())
    library: Any = torch.library.Library
    aten, every = library("aten", "IMPL"), library("_", "IMPL")
    for operator, kernel in primitives.KERNELS.items():
        aten.impl(operator, kernel, KEY)
    for key in ("Conjugate", "Negative"):
        # Torch would resolve a lazy conjugate by a copy, which comes here again.
        for operator in ("_copy_from", "_copy_from_and_resize"):
            aten.impl(operator, torch.library.fallthrough_kernel, key)
    for operator, op in dispatch.structured().items():
        aten.impl(operator, functools.partial(dispatch.fallback, op), KEY)
    every.fallback(dispatch.fallback, KEY)
    autocast.register(aten, every)
    holes.fill()
    _libraries.extend((aten, every))
