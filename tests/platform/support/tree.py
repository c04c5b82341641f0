"""What the tests of this folder apply to a copy of the pinned DeepInfer: the emitted files."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def payload() -> dict[str, bytes]:
    """Files of generated/, with overrides/engine as it is now laid over them (the two are equal after a sync)."""
    return {**_below(ROOT / "generated"), **_below(ROOT / "overrides" / "engine")}


def _below(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not {"__pycache__", ".porter"} & set(path.parts)
    }
