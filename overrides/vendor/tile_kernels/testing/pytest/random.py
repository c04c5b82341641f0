"""Seeds for each test, as ``tile_kernels.testing.pytest.random`` gives them."""

from __future__ import annotations

import hashlib
import random

import pytest
import torch


def pytest_addoption(parser):
    """Add ``--seed``."""
    parser.addoption("--seed", type=int, default=0, help="a number added to every test's own seed")


@pytest.fixture(autouse=True)
def seed(request):
    """Seed Python's and torch's generators by the test's name plus ``--seed``, and return the seed."""
    name = int(hashlib.sha256(request.node.nodeid.encode()).hexdigest(), 16) % (1 << 31)
    value = request.config.getoption("--seed") + name
    random.seed(value)
    torch.manual_seed(value)
    return value
