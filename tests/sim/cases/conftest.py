"""Installs the device in the process of the cases."""

from __future__ import annotations

import warnings

from porter import sim

warnings.filterwarnings("ignore", message=".*NumPy.*")
sim.install(devices=2)
