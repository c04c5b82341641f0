"""The choice of tests that ``tile_kernels.testing.pytest.precompile`` makes for filling a kernel cache."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pytest

_TOKEN_COUNTS = ("num_tokens", "num_expanded_tokens", "num_send_tokens")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """With ``TK_PRECOMPILE=1``, keep the tests whose parameters hold a number of tokens."""
    if os.environ.get("TK_PRECOMPILE", "0") != "1":
        return
    kept = [item for item in items if hasattr(item, "callspec") and _counts_tokens(item.callspec.params)]
    left = [item for item in items if item not in kept]
    items[:] = kept
    if left:
        config.hook.pytest_deselected(items=left)


def _counts_tokens(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(name in value for name in _TOKEN_COUNTS) or any(_counts_tokens(one) for one in value.values())
    return isinstance(value, (list, tuple)) and any(_counts_tokens(one) for one in value)
