"""The facts cache is a shortcut and never more: whatever is in it, the answer is the same."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from porter.surface.cache import FactsCache, decode, encode, file_digest, reader_version
from porter.surface.model import ModuleFacts
from porter.surface.python import extract

SOURCE = b"import a\nX = 1\ndef f(x: int = 2) -> int:\n    return x\nclass C:\n    y: int = 3\n"


@pytest.fixture
def facts() -> ModuleFacts:
    return extract("m.py", SOURCE)


def test_round_trip(facts: ModuleFacts) -> None:
    assert decode(encode(facts)) == facts


def test_put_and_get(tmp_path: Path, facts: ModuleFacts) -> None:
    digest = file_digest(SOURCE)
    with FactsCache(tmp_path) as cache:
        assert cache.get([digest]) == {}
        cache.put({digest: encode(facts)})
        assert cache.get([digest, "0" * 64]) == {digest: facts}
    with FactsCache(tmp_path) as cache:
        assert cache.get([digest]) == {digest: facts}


def test_many_digests(tmp_path: Path, facts: ModuleFacts) -> None:
    rows = {f"{n:064x}": encode(facts) for n in range(1300)}
    with FactsCache(tmp_path) as cache:
        cache.put(rows)
        assert len(cache.get(rows)) == 1300


def test_another_reader_sees_nothing(tmp_path: Path, facts: ModuleFacts, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = file_digest(SOURCE)
    with FactsCache(tmp_path) as cache:
        cache.put({digest: encode(facts)})
        monkeypatch.setattr("porter.surface.cache.reader_version", lambda: "another")
        assert cache.get([digest]) == {}
        cache.put({"1" * 64: encode(facts)})
        # What the other reader wrote is gone, so that the file does not grow with every version.
        monkeypatch.setattr("porter.surface.cache.reader_version", reader_version)
        assert cache.get([digest]) == {}


@pytest.mark.parametrize("value", [b"", b"junk", b"\x78\x01junk"])
def test_corrupt_entry_is_ignored_and_rewritten(tmp_path: Path, facts: ModuleFacts, value: bytes) -> None:
    digest = file_digest(SOURCE)
    with FactsCache(tmp_path) as cache:
        cache.put({digest: encode(facts)})
    with sqlite3.connect(tmp_path / "facts.sqlite3") as connection:
        connection.execute("UPDATE facts SET value = ?", (value,))
    connection.close()
    with FactsCache(tmp_path) as cache:
        assert cache.get([digest]) == {}
        cache.put({digest: encode(facts)})
        assert cache.get([digest]) == {digest: facts}


def test_entry_of_another_shape_is_ignored(tmp_path: Path) -> None:
    with FactsCache(tmp_path) as cache:
        cache.put({"1" * 64: b'{"functions": 3}', "2" * 64: b"[]"})
        assert cache.get(["1" * 64, "2" * 64]) == {}


@pytest.mark.parametrize("content", [b"", b"no database at all, but long enough to look like a file" * 100])
def test_file_that_is_no_database(tmp_path: Path, facts: ModuleFacts, content: bytes) -> None:
    (tmp_path / "facts.sqlite3").write_bytes(content)
    with FactsCache(tmp_path) as cache:
        cache.put({"1" * 64: encode(facts)})
        assert cache.get(["1" * 64]) == {"1" * 64: facts}


def test_folder_that_cannot_be_made(tmp_path: Path, facts: ModuleFacts) -> None:
    (tmp_path / "file").write_text("")
    with FactsCache(tmp_path / "file" / "below") as cache:
        cache.put({"1" * 64: encode(facts)})
        assert cache.get(["1" * 64]) == {}


def test_read_only_file(tmp_path: Path, facts: ModuleFacts) -> None:
    """Whether or not the file can be written (root may), reading and writing raise nothing."""
    with FactsCache(tmp_path) as cache:
        cache.put({"1" * 64: encode(facts)})
    path = tmp_path / "facts.sqlite3"
    path.chmod(0o400)
    tmp_path.chmod(0o500)
    try:
        with FactsCache(tmp_path) as cache:
            cache.put({"2" * 64: encode(facts)})
            assert set(cache.get(["1" * 64])) <= {"1" * 64}
    finally:
        tmp_path.chmod(0o700)


def test_several_processes(tmp_path: Path) -> None:
    """Four processes write and read at once; nothing is lost and nothing raises."""
    script = textwrap.dedent("""
        import sys
        from pathlib import Path
        from porter.surface.cache import FactsCache, encode
        from porter.surface.model import ModuleFacts
        folder, me = Path(sys.argv[1]), int(sys.argv[2])
        for n in range(25):
            with FactsCache(folder) as cache:
                cache.put({f"{me:032x}{n:032x}": encode(ModuleFacts(order=(str(n),)))})
                assert cache.get([f"{me:032x}{n:032x}"])
        """)
    running = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path), str(me)], stderr=subprocess.PIPE)
        for me in range(4)
    ]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
    with FactsCache(tmp_path) as cache:
        assert len(cache.get(f"{me:032x}{n:032x}" for me in range(4) for n in range(25))) == 100


def test_reader_version_follows_the_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    before = reader_version()
    reader_version.cache_clear()
    monkeypatch.setattr("porter.surface.cache.__version__", "another")
    assert reader_version() != before
    reader_version.cache_clear()
