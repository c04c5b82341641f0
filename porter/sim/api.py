"""Install the device, and what else torch should know of it."""

from __future__ import annotations

from porter.sim import device


def install(*, devices: int = 1, compile: bool = True, distributed: bool = True) -> None:
    """Make ``torch.device("neuron")`` the simulated device, for the rest of the process.

    Args:
        devices: cores that the process sees.
        compile: register ``torch.compile(backend="neuron")`` too, when Dynamo is imported.
        distributed: register the backend ``neuron`` of ``torch.distributed`` too.

    Raises:
        SimError: another PrivateUse1 device is there already.
        TorchInternalError: torch lacks an internal; the message says which release changed it.
    """
    device.register(devices)
    if distributed:
        from porter.sim import distributed as collectives

        collectives.register()
    if compile:
        from porter.sim import compile as compiler

        compiler.register()
