"""What the plugins of ``tile_kernels.testing.pytest`` share: where tests live, and how records are merged."""

from __future__ import annotations

import os

import pytest

MERGE_MODES = ("overwrite", "replace", "fill")


def get_tests_dir():
    """Folder of the tests from ``TK_TESTS_DIR``, or else ``TK_BENCHMARK_TESTS_DIR``; None when neither is set."""
    return os.environ.get("TK_TESTS_DIR") or os.environ.get("TK_BENCHMARK_TESTS_DIR")


def item_source_file(item):
    """Path of a test's file below the tests' folder; None when there is no folder, or when the test lies outside of it."""
    path = getattr(item, "path", None) or getattr(item, "fspath", None)
    folder = get_tests_dir()
    if path is None or not folder:
        return None
    relative = os.path.relpath(os.path.abspath(str(path)), os.path.abspath(folder))
    return None if relative.split(os.sep)[0] == os.pardir else relative


def merge_mode():
    """How new records join old ones, from ``TK_TEST_MERGE_MODE``; ``replace`` when it says nothing known."""
    mode = os.environ.get("TK_TEST_MERGE_MODE", "replace").strip().lower()
    return mode if mode in MERGE_MODES else "replace"


def validate_merge_mode():
    """Refuse a ``TK_TEST_MERGE_MODE`` that is set to nothing known.

    Raises:
        pytest.UsageError: it is.
    """
    mode = os.environ.get("TK_TEST_MERGE_MODE", "")
    if mode and mode.strip().lower() not in MERGE_MODES:
        raise pytest.UsageError(f"TK_TEST_MERGE_MODE is {mode!r}: expected one of {', '.join(MERGE_MODES)}")
