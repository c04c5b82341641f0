"""A folder as a source."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from porter.errors import SourceError
from porter.sources.path import tree_digest
from porter.sources.resolve import resolve
from porter.sources.spec import PathSpec
from tests.sources.builders import PACKAGE, SETUP
from tests.sources.test_source_layout import lay


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return lay(tmp_path / "checkout", {**PACKAGE, "setup.py": SETUP, "csrc/a.cpp": "int a;\n"})


def test_resolved(checkout: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    found = resolve(PathSpec("demo", checkout, ("demo",)), offline=True, cache=tmp_path / "cache")
    assert (found.kind, found.version, found.filename) == ("path", "1.0", None)
    assert (found.root, found.package_dirs, found.top) == (checkout, ("demo",), checkout)
    assert found.sha256 == tree_digest(checkout)
    assert sorted(tmp_path.rglob("*")) == before


def test_package_itself(checkout: Path) -> None:
    found = resolve(PathSpec("demo", checkout / "demo", ("demo",)))
    assert (found.root, found.version, found.sha256) == (checkout, "1.0", tree_digest(checkout / "demo"))


def test_same_sources_elsewhere_have_the_same_digest(checkout: Path, tmp_path: Path) -> None:
    other = lay(tmp_path / "other", {path.relative_to(checkout).as_posix(): "" for path in checkout.rglob("*.*")})
    for path in checkout.rglob("*.*"):
        (other / path.relative_to(checkout)).write_bytes(path.read_bytes())
    assert tree_digest(other) == tree_digest(checkout)


def _content(root: Path) -> None:
    (root / "demo/__init__.py").write_text("__version__ = '1.1'\n")


def _new(root: Path) -> None:
    (root / "demo/new.py").write_text("")


def _moved(root: Path) -> None:
    (root / "demo/kernels/norm.py").rename(root / "demo/norm.py")


def _removed(root: Path) -> None:
    (root / "csrc/a.cpp").unlink()


def _renamed(root: Path) -> None:
    (root / "csrc/a.cpp").rename(root / "csrc/b.cpp")


@pytest.mark.parametrize("change", [_content, _new, _moved, _removed, _renamed])
def test_digest_moves(checkout: Path, change: Callable[[Path], None]) -> None:
    before = tree_digest(checkout)
    change(checkout)
    assert tree_digest(checkout) != before


@pytest.mark.parametrize(
    "path",
    [
        "demo/__pycache__/a.py",
        ".git/config.txt",
        "demo/.idea/a.py",
        "build/lib/demo/a.py",
        "dist/a.txt",
        "demo.egg-info/top_level.txt",
        "demo/lib.so",
    ],
)
def test_digest_stays(checkout: Path, path: str) -> None:
    before = tree_digest(checkout)
    lay(checkout, {path: "x"})
    assert tree_digest(checkout) == before


def test_inner_build_folder_counts(checkout: Path) -> None:
    before = tree_digest(checkout)
    lay(checkout, {"demo/build/a.py": "x"})
    assert tree_digest(checkout) != before


def test_touching_is_no_change(checkout: Path) -> None:
    before = tree_digest(checkout)
    os.utime(checkout / "demo/__init__.py", (1, 1))
    assert tree_digest(checkout) == before


def test_links(checkout: Path) -> None:
    """A linked file counts by its content; a linked folder, a loop and a broken link do not count."""
    before = tree_digest(checkout)
    (checkout / "loop").symlink_to(".")
    (checkout / "broken.py").symlink_to("absent.py")
    assert tree_digest(checkout) == before
    (checkout / "linked.py").symlink_to("setup.py")
    linked = tree_digest(checkout)
    assert linked != before
    (checkout / "linked.py").unlink()
    (checkout / "linked.py").write_text(SETUP)
    assert tree_digest(checkout) == linked


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not exist") as caught:
        resolve(PathSpec("demo", tmp_path / "absent"))
    assert caught.value.path == str(tmp_path / "absent")


def test_file_instead_of_folder(tmp_path: Path) -> None:
    (tmp_path / "demo.tar.gz").write_text("")
    with pytest.raises(SourceError, match="is a file, not a folder"):
        resolve(PathSpec("demo", tmp_path / "demo.tar.gz"))


def test_folder_without_the_package(checkout: Path) -> None:
    with pytest.raises(SourceError, match="no Python package 'other'") as caught:
        resolve(PathSpec("other", checkout, ("other",)))
    assert caught.value.path == str(checkout)


def test_unreadable_file(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permissions do not bind the superuser, so the refusal is the system's stand-in."""
    real = Path.open

    def refuse(self: Path, *arguments: object, **options: object) -> object:
        if self.name == "norm.py":
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(SourceError, match="Permission denied") as caught:
        resolve(PathSpec("demo", checkout))
    assert caught.value.path == str(checkout / "demo/kernels/norm.py")
