"""Reading a tree: all of it, in order, from the cache where it can, and every unreadable file named."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from porter.errors import UnreadableUpstreamError
from porter.surface import python as python_reader
from porter.surface.cache import FactsCache
from porter.surface.python import extract
from porter.surface.reader import _read, python_files, read_tree


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "src"
    for name in ("p/__init__.py", "p/b.py", "p/a.py", "p/sub/__init__.py", "p/sub/c.py", "q.py"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"NAME = {name!r}\ndef f(): return NAME\n")
    return root


@pytest.fixture
def cache(tmp_path: Path) -> FactsCache:
    return FactsCache(tmp_path / "cache").__enter__()


def test_all_files_in_order(tree: Path, cache: FactsCache) -> None:
    found = read_tree(tree, reversed(python_files(tree)), cache=cache)
    assert list(found) == ["p/__init__.py", "p/a.py", "p/b.py", "p/sub/__init__.py", "p/sub/c.py", "q.py"]
    assert found["p/a.py"] == extract("p/a.py", (tree / "p/a.py").read_bytes())


def test_relative_paths(tree: Path, cache: FactsCache) -> None:
    assert list(read_tree(tree, [Path("p/a.py")], cache=cache)) == ["p/a.py"]


def test_second_run_parses_nothing(tree: Path, cache: FactsCache, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read_tree(tree, python_files(tree), cache=cache)

    def fail(path: str, data: bytes) -> None:
        raise AssertionError(path)

    monkeypatch.setattr(python_reader, "extract", fail)
    assert read_tree(tree, python_files(tree), cache=cache) == first


def test_changed_file_is_read_again(tree: Path, cache: FactsCache) -> None:
    read_tree(tree, python_files(tree), cache=cache)
    (tree / "p/a.py").write_text("def g(): pass\n")
    found = read_tree(tree, python_files(tree), cache=cache)
    assert [fact.name for fact in found["p/a.py"].functions] == ["g"]
    assert [fact.name for fact in found["p/b.py"].functions] == ["f"]


def test_several_processes_read_the_same(tree: Path, cache: FactsCache, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = read_tree(tree, python_files(tree), jobs=1, cache=FactsCache(Path("/nonexistent")))
    monkeypatch.setattr("porter.surface.reader._WORTH_A_PROCESS", 1)
    monkeypatch.setattr("porter.surface.reader._BATCH", 80)
    assert read_tree(tree, python_files(tree), jobs=2, cache=cache) == alone


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_unreadable_file_is_named(
    tree: Path, cache: FactsCache, jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("porter.surface.reader._WORTH_A_PROCESS", 1)
    (tree / "p/a.py").write_text("def f(:\n")
    (tree / "p/sub/c.py").write_bytes(b"x = 1\n# \xff\n")
    with pytest.raises(UnreadableUpstreamError) as caught:
        read_tree(tree, [*python_files(tree), tree / "p/gone.py"], jobs=jobs, cache=cache)
    assert [cause.place for cause in caught.value.causes] == ["p/a.py:1", "p/gone.py", "p/sub/c.py:2"]
    assert "3 upstream files cannot be read" in str(caught.value)
    assert caught.value.exit_code == 3
    # What could be read is kept all the same.
    (tree / "p/a.py").write_text("x = 1\n")
    (tree / "p/sub/c.py").write_text("x = 1\n")
    assert len(read_tree(tree, python_files(tree), jobs=jobs, cache=cache)) == 6


def _ends_on_a_bad_file(items: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes] | tuple[str, int | None, str]]:
    if any(data == b"bad" for _, data in items):
        os._exit(9)
    return [(name, data) for name, data in items]


def test_file_that_ends_the_process_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("porter.surface.reader._WORTH_A_PROCESS", 1)
    monkeypatch.setattr("porter.surface.reader._BATCH", 10)
    items = [(f"{n}.py", b"bad" if n == 5 else b"good") for n in range(7)]
    results = {result[0]: result[1:] for result in _read(items, 2, _ends_on_a_bad_file)}
    assert len(results) == 7
    assert results["5.py"][0] is None
    assert "ended the process" in str(results["5.py"][1])
    assert [name for name, rest in results.items() if rest[0] is None] == ["5.py"]


def test_progress(tree: Path, cache: FactsCache) -> None:
    seen: list[tuple[int, int]] = []
    read_tree(tree, python_files(tree), cache=cache, progress=lambda done, total: seen.append((done, total)))
    assert seen[0] == (0, 6)
    assert seen[-1] == (6, 6)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    seen.clear()
    read_tree(tree, python_files(tree), cache=cache, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(6, 6)]


def test_corrupt_cache_changes_nothing(tree: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "facts.sqlite3").write_bytes(b"junk" * 5000)
    with FactsCache(folder) as cache:
        assert len(read_tree(tree, python_files(tree), cache=cache)) == 6
    with FactsCache(folder) as cache:
        assert len(read_tree(tree, python_files(tree), cache=cache)) == 6


def test_only_importable_files(tree: Path) -> None:
    for name in ("p/3rdparty/x.py", "p/with-dash.py", "p/.hidden/y.py", "p/data.txt"):
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    names = [path.relative_to(tree).as_posix() for path in python_files(tree)]
    assert names == ["p/__init__.py", "p/a.py", "p/b.py", "p/sub/__init__.py", "p/sub/c.py", "q.py"]


def test_nothing_to_read(tree: Path, cache: FactsCache) -> None:
    assert read_tree(tree, [], cache=cache) == {}
