"""What can be wrong with a report's inputs and its place."""

from __future__ import annotations

from porter.errors import PorterError


class ReportError(PorterError):
    """A report cannot be made of these results, or would replace a file that porter did not write."""

    exit_code = 2
    code = "report"
