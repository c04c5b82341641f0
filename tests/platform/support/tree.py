"""What the tests of this folder apply to a copy of the pinned DeepInfer: the emitted files."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
VENDOR = "deepinfer/neuron_ops/vendor"
FAKED = ("deep_ep", "deep_gemm", "deep_select", "flash_mla", "tile_kernels", "tilelang")


def fake_vendor() -> bool:
    """Whether ``PORTER_TEST_VENDOR=fake`` asks for fake vendor packages in place of the emitted ones.

    For work on the platform while a drop-in is broken. tile_kernels and tilelang are then the installed ones.
    """
    return os.environ.get("PORTER_TEST_VENDOR") == "fake"


def payload() -> dict[str, bytes]:
    """Files of generated/, with overrides/engine as it is now laid over them (the two are equal after a sync)."""
    files = {**_below(ROOT / "generated"), **_below(ROOT / "overrides" / "engine")}
    if not fake_vendor():
        return files
    return {
        path: data for path, data in files.items() if not path.startswith(tuple(f"{VENDOR}/{name}/" for name in FAKED))
    }


def _below(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not {"__pycache__", ".porter"} & set(path.parts)
    }
