"""The release that ``tilelang`` stands for."""

from __future__ import annotations

__version__ = "0.1.15"
