"""Random numbers: the device has no operators for them, they come from a generator of the CPU.

``torch.Generator(device="neuron")`` gives a CPU generator that says it is the device's, and torch's own default CPU
generator is the device's default one: seeds have the effect they have on the CPU.
"""

from __future__ import annotations

from typing import Any

import torch

from porter.sim.names import NAME

_Original: Any = torch.Generator


def _device_type(device: Any) -> str:
    return device.type if isinstance(device, torch.device) else str(device).partition(":")[0]


class _DeviceGenerator(_Original):  # type: ignore[misc]
    """A CPU generator under the device's name."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return super().__new__(cls, device="cpu")

    @property
    def device(self) -> torch.device:
        """The device."""
        return torch.device(NAME, 0)


class _Meta(type):
    def __call__(cls, device: Any = "cpu") -> Any:
        if _device_type(device) == NAME:
            return _DeviceGenerator()
        return _Original(device=device)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Original)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _Original)


class Generator(metaclass=_Meta):
    """Stands for ``torch.Generator``: makes real ones."""


def manual_seed(seed: int) -> None:
    """Seed the default generator."""
    torch.default_generator.manual_seed(int(seed))


def seed() -> int:
    """Seed the default generator from the system's randomness."""
    return int(torch.default_generator.seed())


def initial_seed() -> int:
    """The seed of the default generator."""
    return int(torch.default_generator.initial_seed())


def get_rng_state(device: Any = None) -> torch.Tensor:
    """State of the default generator, a uint8 CPU tensor."""
    return torch.default_generator.get_state()


def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
    """Put a state back."""
    torch.default_generator.set_state(state)
