"""Publishing the emitted tree: ownership, atomicity, repair."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from porter import tree
from porter.errors import BusyError, EditedOutputError, TreeError
from porter.tree import JOURNAL, MANIFEST, exclusive, publish, read_state

FILES = {"a.py": b"a = 1\n", "pkg/b.py": b"b = 2\n", "pkg/sub/c.py": b"c = 3\n"}


def put(out: Path, files: dict[str, bytes], **options: bool) -> tree.Changes:
    return publish(out, read_state(out), files, "inputs", **options)


def test_second_publish_writes_nothing(tmp_path: Path) -> None:
    assert put(tmp_path, FILES).created == tuple(sorted(FILES))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert not put(tmp_path, FILES).any
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_only_what_differs_is_written(tmp_path: Path) -> None:
    put(tmp_path, FILES)
    kept = (tmp_path / "a.py").stat().st_mtime_ns
    changes = put(tmp_path, {**FILES, "pkg/b.py": b"b = 3\n"})
    assert (changes.created, changes.changed, changes.removed) == ((), ("pkg/b.py",), ())
    assert (tmp_path / "a.py").stat().st_mtime_ns == kept
    assert (tmp_path / "pkg/b.py").read_bytes() == b"b = 3\n"


def test_stale_owned_files_and_their_empty_folders_go(tmp_path: Path) -> None:
    put(tmp_path, FILES)
    (tmp_path / "pkg/sub/__pycache__").mkdir()
    (tmp_path / "pkg/sub/__pycache__/c.pyc").write_bytes(b"")
    assert put(tmp_path, {"a.py": FILES["a.py"]}).removed == ("pkg/b.py", "pkg/sub/c.py")
    assert not (tmp_path / "pkg").exists()


def test_unowned_files_are_never_touched(tmp_path: Path) -> None:
    put(tmp_path, FILES)
    mine = tmp_path / "pkg/mine.txt"
    mine.write_text("mine")
    put(tmp_path, {"a.py": FILES["a.py"]})
    assert mine.read_text() == "mine"


def test_an_unowned_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("somebody's")
    with pytest.raises(EditedOutputError, match="does not own"):
        put(tmp_path, FILES)
    assert (tmp_path / "a.py").read_text() == "somebody's"
    assert not (tmp_path / "pkg").exists()
    put(tmp_path, FILES, force=True)
    assert (tmp_path / "a.py").read_bytes() == FILES["a.py"]


@pytest.mark.parametrize("after", [{**FILES, "a.py": b"a = 9\n"}, {"pkg/b.py": FILES["pkg/b.py"]}])
def test_an_edited_file_is_not_overwritten(tmp_path: Path, after: dict[str, bytes]) -> None:
    put(tmp_path, FILES)
    (tmp_path / "a.py").write_text("edited")
    assert read_state(tmp_path).edited == ("a.py",)
    with pytest.raises(EditedOutputError, match=r"a\.py"):
        put(tmp_path, after)
    assert (tmp_path / "a.py").read_text() == "edited"
    put(tmp_path, after, force=True)
    assert read_state(tmp_path).edited == ()


def test_a_missing_file_is_put_back(tmp_path: Path) -> None:
    put(tmp_path, FILES)
    (tmp_path / "pkg/b.py").unlink()
    assert read_state(tmp_path).missing == ("pkg/b.py",)
    assert put(tmp_path, FILES).created == ("pkg/b.py",)


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with exclusive(tmp_path), pytest.raises(BusyError, match="another porter"), exclusive(tmp_path):
        pass
    with exclusive(tmp_path):
        pass


def _killed(out: Path, after: int) -> None:
    writes = 0
    real = tree.write_atomic

    def dying(path: Path, data: bytes) -> None:
        nonlocal writes
        if writes == after:
            os.kill(os.getpid(), signal.SIGKILL)
        writes += 1
        real(path, data)

    tree.write_atomic = dying
    publish(out, read_state(out), {**FILES, "a.py": b"a = 2\n", "new.py": b"n = 1\n"}, "later")


@pytest.mark.parametrize("after", range(5))
def test_killed_at_any_moment_the_state_tells_and_the_next_run_repairs(tmp_path: Path, after: int) -> None:
    put(tmp_path, FILES)
    child = multiprocessing.get_context("fork").Process(target=_killed, args=(tmp_path, after))
    child.start()
    child.join()
    assert child.exitcode == (-signal.SIGKILL if after < 4 else 0)
    state = read_state(tmp_path)
    assert state.interrupted is (1 <= after < 4)
    assert state.edited == (), "a half-done publish is not a hand edit"
    wanted = {**FILES, "a.py": b"a = 2\n", "new.py": b"n = 1\n"}
    put(tmp_path, wanted)
    assert {path: (tmp_path / path).read_bytes() for path in wanted} == wanted
    state = read_state(tmp_path)
    assert (state.interrupted, state.missing, state.edited) == (False, (), ())
    assert not [path for path in tmp_path.rglob(".*.*") if path.name not in (".porter",)], "no temporary file is left"


def test_no_space_leaves_a_repairable_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, FILES)
    real = os.fsync
    calls = 0

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(28, "No space left on device", "x")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TreeError, match="No space left"):
        put(tmp_path, {**FILES, "a.py": b"a = 2\n"})
    monkeypatch.undo()
    assert read_state(tmp_path).interrupted
    assert (tmp_path / "a.py").read_bytes() == b"a = 1\n"
    put(tmp_path, {**FILES, "a.py": b"a = 2\n"})
    assert read_state(tmp_path) == read_state(tmp_path)
    assert (tmp_path / "a.py").read_bytes() == b"a = 2\n"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"files": {"../x": "1"}, "inputs": ""}',
        '{"files": [], "inputs": ""}',
        '{"files": {"/x": "1"}, "inputs": ""}',
    ],
)
def test_a_broken_manifest_is_told(tmp_path: Path, text: str) -> None:
    put(tmp_path, FILES)
    (tmp_path / MANIFEST).write_text(text)
    assert "manifest.json cannot be read" in read_state(tmp_path).manifest_error


def test_the_manifest_is_the_same_text_everywhere(tmp_path: Path) -> None:
    put(tmp_path / "one", FILES)
    put(tmp_path / "two", dict(reversed(FILES.items())))
    assert (tmp_path / "one" / MANIFEST).read_bytes() == (tmp_path / "two" / MANIFEST).read_bytes()
    assert not (tmp_path / "one" / JOURNAL).exists()
