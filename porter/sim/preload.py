"""Installs the device when imported, for tools that take a module to import first (``preload`` of ``porter verify``)."""

from __future__ import annotations

from porter.sim.api import install

install()
