"""The device's name."""

from __future__ import annotations

NAME = "neuron"
KEY = "PrivateUse1"
