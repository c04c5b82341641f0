"""Features switched on beyond basic mode, by the names ``basic_mode`` uses (``mtp``, ``zos``, ``cp``, ...).

The kernels of a feature and its switch here are emitted together: a name in ``ENABLED`` lifts the feature's default
and its refusal at start.
"""

from __future__ import annotations

ENABLED: frozenset[str] = frozenset()
