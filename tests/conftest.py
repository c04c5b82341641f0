"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# Releases that only tests read, beside those that porter.toml pins.
EXTRA = {
    "tile_kernels_1_0_0": ("tile_kernels", "tile-kernels==1.0.0"),
    "tileops": ("tileops", "tileops==0.1.0"),
    "fla": ("fla", "fla-core==0.6.0"),
}


# Set by tests that run their own file again with a device registered.
TARGET = "PORTER_TEST_TARGET"
# Its files install the device, each in a process of its own.
DEVICE_CASES = ROOT / "tests" / "sim" / "cases"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A registered device stays for the life of the process, and changes what every later test sees."""
    torch = sys.modules.get("torch")
    if torch is None or TARGET in os.environ or item.path.is_relative_to(DEVICE_CASES):
        return
    device = torch._C._get_privateuse1_backend_name()
    assert device == "privateuseone", (
        f"the device {device!r} is registered in this process: expected a test that registers one to run a process of "
        f"its own (tests/sim/sim_process.py)"
    )


@cache
def unpacked(name: str) -> Path:
    """Folder of a source as porter unpacks it, fetched through the configured index the first time."""
    from porter.config import load_config
    from porter.lock import read_lock
    from porter.sources.resolve import resolve
    from porter.sources.spec import parse_source

    config = load_config(ROOT / "porter.toml")
    package, requirement = EXTRA.get(name) or (name, config.sources[name])
    record = None if name in EXTRA or not config.lock_path.exists() else read_lock(config.lock_path).source(name)
    spec = parse_source(package, requirement, base=ROOT, package_dirs=(package,))
    return resolve(spec, lock_record=record, offline=False).top


@pytest.fixture(scope="session")
def source_root() -> Callable[[str], Path]:
    """Unpacked folder of a pinned source, by the name porter.toml gives it."""
    return unpacked
