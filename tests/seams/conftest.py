"""Throw-away checkouts of the pinned DeepInfer."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from porter.seams import manifest

PAYLOAD: Mapping[str, bytes] = {
    "deepinfer/neuron_ops/__init__.py": b'"""New."""\n',
    "deepinfer/neuron_ops/deep/er/module.py": "x = 'ü'\n".encode(),
    "csrc/neuron/target.hpp": b"#pragma once\n",
}


@pytest.fixture
def checkout(tmp_path: Path, source_root: Callable[[str], Path]) -> Path:
    """A fresh copy of the pinned DeepInfer source archive."""
    target = tmp_path / "checkout"
    shutil.copytree(source_root("deepinfer"), target)
    return target


@pytest.fixture
def payload() -> dict[str, bytes]:
    """A small set of new files."""
    return dict(PAYLOAD)


def snapshot(root: Path, *, without_record: bool = False) -> dict[str, tuple[bytes | None, int]]:
    """Every file and folder below ``root`` with content (None for folders) and mode; .git is left out."""
    found: dict[str, tuple[bytes | None, int]] = {}
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root).as_posix()
        if relative.split("/")[0] == ".git" or (without_record and relative.split("/")[0] == manifest.FOLDER):
            continue
        found[relative] = (path.read_bytes() if path.is_file() else None, path.stat().st_mode)
    return found
