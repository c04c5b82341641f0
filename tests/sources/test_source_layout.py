"""Where the packages are, and which version it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from porter.errors import SourceError
from porter.sources.layout import UNKNOWN_VERSION, folder_layout, sdist_layout, version_of, wheel_layout


def lay(root: Path, files: Mapping[str, str]) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "asked", "root", "found"),
    [
        (["demo-1/demo/__init__.py", "demo-1/setup.py"], (), "demo-1", ("demo",)),
        (["demo-1/demo/__init__.py", "demo-1/tests/__init__.py"], (), "demo-1", ("demo",)),
        (["demo-1/src/demo/__init__.py", "demo-1/setup.py"], (), "demo-1/src", ("demo",)),
        (["demo-1/src/demo/__init__.py"], ("demo",), "demo-1/src", ("demo",)),
        (["demo-1/python/demo/__init__.py"], (), "demo-1/python", ("demo",)),
        (["demo-1/b/__init__.py", "demo-1/a/__init__.py"], (), "demo-1", ("a", "b")),
        (["demo-1/b/__init__.py", "demo-1/a/__init__.py"], ("b",), "demo-1", ("b",)),
        (["demo-1/b/__init__.py", "demo-1/a/__init__.py"], ("b", "a"), "demo-1", ("b", "a")),
        (["demo-1/space/x.py"], ("space",), "demo-1", ("space",)),
        (["demo-1/space/deep/x.py"], ("space/deep",), "demo-1", ("space/deep",)),
        (["demo/__init__.py"], (), "", ("demo",)),
        (["demo/__init__.py", "PKG-INFO"], (), "", ("demo",)),
    ],
)
def test_sdist(tmp_path: Path, files: list[str], asked: tuple[str, ...], root: str, found: tuple[str, ...]) -> None:
    layout = sdist_layout(lay(tmp_path, dict.fromkeys(files, "")), asked, "demo-1.tar.gz")
    assert (layout.root, layout.package_dirs) == (tmp_path / root, found)


def test_top_level_record_names_the_packages(tmp_path: Path) -> None:
    files = {
        "d-1/d.egg-info/top_level.txt": "space\nabsent\n_C\n",
        "d-1/space/x.py": "",
        "d-1/helpers/__init__.py": "",
    }
    assert sdist_layout(lay(tmp_path, files), (), "d").package_dirs == ("space",)


def test_top_is_the_source_tree(tmp_path: Path) -> None:
    layout = sdist_layout(lay(tmp_path, {"d-1/src/d/__init__.py": "", "d-1/csrc/a.cpp": ""}), (), "d")
    assert (layout.top, layout.root) == (tmp_path / "d-1", tmp_path / "d-1" / "src")


@pytest.mark.parametrize("kind", ["purelib", "platlib"])
def test_wheel(tmp_path: Path, kind: str) -> None:
    plain = lay(tmp_path / "plain", {"demo/__init__.py": "", "demo-1.dist-info/METADATA": ""})
    assert wheel_layout(plain, (), "w").package_dirs == ("demo",)
    data = lay(tmp_path / "data", {f"demo-1.data/{kind}/demo/__init__.py": "", "demo-1.dist-info/METADATA": ""})
    assert wheel_layout(data, ("demo",), "w").root == data / f"demo-1.data/{kind}"


def test_folder(tmp_path: Path) -> None:
    checkout = lay(tmp_path / "checkout", {"demo/__init__.py": "", "demo/sub/__init__.py": ""})
    assert folder_layout(checkout, ("demo",), "c").root == checkout
    itself = folder_layout(checkout / "demo", ("demo",), "c")
    assert (itself.root, itself.package_dirs, itself.top) == (checkout, ("demo",), checkout / "demo")


def test_folder_of_one_name_with_its_package(tmp_path: Path) -> None:
    """A checkout ``demo/demo`` whose own folder is a package too means the inner one, where the package is asked for."""
    checkout = lay(tmp_path / "demo", {"__init__.py": "", "demo/__init__.py": ""})
    assert folder_layout(checkout, ("demo",), "c").root == checkout


@pytest.mark.parametrize("asked", [(), ("demo",), ("demo", "other")])
@pytest.mark.parametrize("read", [sdist_layout, wheel_layout, folder_layout])
def test_no_package_is_an_error(tmp_path: Path, asked: tuple[str, ...], read: type) -> None:
    tree = lay(tmp_path, {"top/README.md": "", "top/tests/__init__.py": "", "top/demo/README.md": ""})
    with pytest.raises(SourceError, match="no Python package") as caught:
        read(tree, asked, "shown")
    assert caught.value.path == "shown"
    assert all(repr(name) in caught.value.message for name in asked)


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({"PKG-INFO": "Name: d\nVersion: 1.2\n\nVersion: 9\n"}, "1.2"),
        ({"d-3.dist-info/METADATA": "Name: d\nVersion: 3.0.POST1\n"}, "3.0.post1"),
        ({"pyproject.toml": '[project]\nversion = "4.0"\n'}, "4.0"),
        ({"pyproject.toml": '[project]\ndynamic = ["version"]\n'}, UNKNOWN_VERSION),
        ({"pyproject.toml": "[project\n", "setup.cfg": "[metadata]\nversion = 5.0\n"}, "5.0"),
        ({"setup.cfg": "[metadata]\nversion = attr: d.__version__\n"}, UNKNOWN_VERSION),
        ({"setup.cfg": "no section\n", "d/__init__.py": "__version__ = '6.0'\n"}, "6.0"),
        ({"d/__init__.py": 'x = 1\n__version__: str = "6.1"\n'}, "6.1"),
        ({"d/__init__.py": "if True:\n    __version__ = '6.2'\n"}, UNKNOWN_VERSION),
        ({"d/__init__.py": "__version__ = compute()\n", "d/_version.py": '__version__ = "7.0"\n'}, "7.0"),
        ({"VERSION": "8.0\n"}, "8.0"),
        ({"d/VERSION": "8.1\n"}, "8.1"),
        ({"d.egg-info/PKG-INFO": "Version: 9.0\n"}, "9.0"),
        ({"d.egg-info/PKG-INFO": "Version: 9.0\n", "pyproject.toml": '[project]\nversion = "9.1"\n'}, "9.1"),
        ({"PKG-INFO": "Version: not a version\n", "VERSION": "10"}, "10"),
        ({}, UNKNOWN_VERSION),
    ],
)
def test_version(tmp_path: Path, files: Mapping[str, str], version: str) -> None:
    layout = folder_layout(lay(tmp_path, {"d/__init__.py": "", **files}), ("d",), "d")
    assert version_of(layout) == version
