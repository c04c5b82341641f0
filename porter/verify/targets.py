"""What ``--device`` may name: the processor, porter's simulated Neuron device, or a device that torch itself knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SIMULATED = "sim"


@dataclass(frozen=True)
class Target:
    """How a device is had in a test process.

    ``device``: its name in torch. ``preload``: modules that register it. ``environment``: variables of the process.
    ``simulated``: record strict findings and costs. ``stretch``: how much longer a case may take than on the processor.
    """

    device: str
    preload: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    simulated: bool = False
    stretch: float = 1.0


def target_of(name: str) -> Target:
    """The target that a user names: ``sim``, or a torch device such as ``cpu`` or ``neuron``.

    >>> target_of("sim").device, target_of("cpu").simulated
    ('neuron', False)
    """
    if name != SIMULATED:
        return Target(name)
    # The real device's own package would take the name first, where it is installed.
    environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    # Small operators cost ten times as much through the simulation's Python, and the harness' own checks run there too.
    return Target("neuron", ("porter.sim.preload",), environment, simulated=True, stretch=10.0)
