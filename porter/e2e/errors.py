"""What can go wrong with the independent implementation."""

from __future__ import annotations

from porter.errors import PorterError


class OracleError(PorterError):
    """The independent implementation cannot be installed, does not start, or stopped."""

    code = "e2e-oracle"
