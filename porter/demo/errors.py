"""What can go wrong between a checkout and its first token."""

from __future__ import annotations

from porter.errors import PorterError, UsageError


class MissingPackagesError(UsageError):
    """The engine's own run-time packages are not installed beside porter."""

    code = "demo-packages"


class BuildError(PorterError):
    """The engine's extension does not build here."""

    code = "demo-build"


class EngineError(PorterError):
    """The engine stopped: at start, or while it generated."""

    code = "demo-engine"
