"""Pytest plugin of the cases' own processes: installs the device. No conftest.py, which collecting the whole suite imports."""

from __future__ import annotations

import warnings

from porter import sim

warnings.filterwarnings("ignore", message=".*NumPy.*")
sim.install(devices=2)
