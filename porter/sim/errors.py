"""What the simulated device raises on purpose.

They are ``RuntimeError`` too, because that is what torch raises for the same mistakes on a device.
"""

from __future__ import annotations

from porter.errors import PorterError


class SimError(PorterError, RuntimeError):
    """The simulated device cannot be installed, or was asked for what no device has."""

    exit_code = 2
    code = "sim"


class TorchInternalError(SimError):
    """A torch internal that the simulated device stands on is not there in this release of torch."""

    code = "sim-torch"


class DeviceLimitError(SimError):
    """What the device cannot do, and neither can its simulation: the same call fails on Trainium."""

    code = "sim-limit"


class UnsupportedError(DeviceLimitError, NotImplementedError):
    """A function or form that the device's torch does not have."""

    code = "sim-unsupported"


class StrictError(SimError):
    """A strict finding, raised where it happened (strict mode ``raise``)."""

    exit_code = 1
    code = "sim-strict"
