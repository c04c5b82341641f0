"""What can stop a verification before it says anything about a kernel."""

from __future__ import annotations

from porter.errors import PorterError


class WorkspaceError(PorterError):
    """The throw-away tree cannot be made from the given upstream and backend."""

    exit_code = 2
    code = "verify-workspace"


class ShrinkError(PorterError):
    """A size substitution does not find what it expects in upstream's file."""

    code = "verify-shrink"


class CatalogueError(PorterError):
    """The catalogue of upstream's tests, or the table of sizes, cannot be read."""

    code = "verify-catalogue"


class MaskError(PorterError):
    """The write masks handed in cannot be read."""

    exit_code = 2
    code = "verify-masks"


class HarnessError(PorterError):
    """The environment lacks something that upstream's tests need, or the test process did not do its work."""

    code = "verify-harness"
