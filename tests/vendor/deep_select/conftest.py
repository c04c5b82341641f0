"""Lets the tests of this folder import the drop-in and the kernel harness."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

_ROOT = Path(__file__).resolve().parents[3]
for _path in (_ROOT, _ROOT / "overrides" / "shared", _ROOT / "tests" / "kernels"):
    if str(_path) not in sys.path:
        sys.path.insert(0, str(_path))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
