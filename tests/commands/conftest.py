"""The little upstream as a fixture."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from mini import Mini


@pytest.fixture
def mini(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mini:
    """A fresh project over a fresh upstream; the cache is this test's own."""
    monkeypatch.setenv("PORTER_CACHE_DIR", str(tmp_path / "cache"))
    return Mini(tmp_path)


@pytest.fixture
def synced(mini: Mini) -> Mini:
    """The project after its first sync, its override pinned."""
    result = mini.run("sync")
    assert "wrote" in result.out, result
    assert mini.run("ack", "--all", "--reason", "first review").code == 0
    result = mini.run("sync")
    assert result.code == 0, result
    return mini
