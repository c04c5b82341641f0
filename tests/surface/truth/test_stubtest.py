"""A second opinion that shares no code with porter: mypy's stubgen reads upstream, its stubtest the emitted package.

stubgen parses upstream's sources (``--no-import``) into stubs; stubtest imports the emitted modules and compares names,
parameters, kinds and defaults. The stubs are only trimmed by what the two tools do not know: the rule by which ``ops.py``
takes factories, a module's ``__all__``, and that imports of another package are no names of this one.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

GENERATED = Path(os.environ.get("PORTER_GENERATED", Path(__file__).parents[3] / "generated"))
VENDOR = GENERATED / "deepinfer" / "neuron_ops" / "vendor"
BACKEND = GENERATED / "deepinfer" / "model_executor" / "layers" / "tilelang_ops" / "neuron"
UPSTREAM_BACKEND = Path("deepinfer/model_executor/layers/tilelang_ops/asc")

# Types of other packages are not compared, so they need not be read; but dataclasses get their constructors from theirs.
_CONFIG = "[mypy]\nfollow_imports = skip\nfollow_imports_for_stubs = True\nignore_missing_imports = True\nignore_errors = True\nimplicit_optional = True\n[mypy-dataclasses]\nfollow_imports = normal\n"
_MISSING_STUB_OF_CLASS = re.compile(
    r'^(?P<name>\S+)\.__init__ is inconsistent, stub does not have \*\*?\w+ parameter "\w+"$'
)

Keep = Callable[[str, str], bool]


def make_stubs(sources: Path, out: Path, package: str, keep: Keep) -> int:
    """Stubs of a folder of upstream modules below ``out/package``, trimmed to names for which ``keep(module, name)``."""
    raw = out.parent / f"{out.name}-raw"
    tool = [
        sys.executable,
        "-c",
        "from mypy.stubgen import main; main()",
        "-q",
        "--no-import",
        "-o",
        str(raw),
        str(sources),
    ]
    done = subprocess.run(tool, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    # stubgen writes below the whole package path that it finds by ``__init__.py`` files.
    base = next(folder for folder in sorted(raw.rglob(sources.name)) if folder.is_dir())
    count = 0
    for stub in sorted(base.rglob("*.pyi")):
        relative = stub.relative_to(base)
        source = sources / relative.with_suffix(".py")
        module = ".".join((package, *relative.with_suffix("").parts)).removesuffix(".__init__")
        target = out / package / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        text, kept = trim(stub.read_text("utf-8"), source.read_bytes(), module, package, keep)
        target.write_text(text, encoding="utf-8")
        count += kept
    return count


def trim(stub: str, source: bytes, module: str, package: str, keep: Keep) -> tuple[str, int]:
    """A stub without names that the module does not offer, and how many functions and classes are left."""
    tree = ast.parse(stub)
    listed = literal_all(source)
    body: list[ast.stmt] = []
    count = 0
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if not keep(module, node.name) or (listed is not None and node.name not in listed):
                continue
            count += 1
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            name = target.id if isinstance(target, ast.Name) else ""
            if not keep(module, name) or (listed is not None and name not in listed and name != "__all__"):
                continue
        elif isinstance(node, ast.ImportFrom):
            # ``import x as x`` makes it a name of this module: only what it offers on may be.
            foreign = node.level == 0 and (node.module or "").partition(".")[0] != package
            offered = [
                not foreign and keep(module, one.name) and (listed is None or one.name in listed) for one in node.names
            ]
            node.names = [
                ast.alias(one.name, one.asname if one.asname != one.name or kept else None)
                for one, kept in zip(node.names, offered, strict=True)
            ]
        body.append(node)
    tree.body = body
    return ast.unparse(tree) + "\n", count


def literal_all(source: bytes) -> set[str] | None:
    for node in ast.parse(source).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            try:
                return set(ast.literal_eval(node.value))  # type: ignore[attr-defined]
            except ValueError:
                return None
    return None


def run_stubtest(package: str, stubs: Path, paths: Iterable[Path], folder: Path) -> list[str]:
    """What stubtest has to say, one line an inconsistency."""
    config = folder / "mypy.ini"
    config.write_text(_CONFIG, encoding="utf-8")
    tool = [
        sys.executable,
        "-m",
        "mypy.stubtest",
        "--concise",
        "--ignore-missing-stub",
        "--mypy-config-file",
        str(config),
        package,
    ]
    environment = {
        **os.environ,
        "MYPYPATH": str(stubs),
        "PYTHONPATH": os.pathsep.join(str(path) for path in paths),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(tool, capture_output=True, text=True, check=False, env=environment, cwd=folder, timeout=900)
    lines = [line for line in done.stdout.splitlines() if line and not line.startswith(("Success", "Found "))]
    assert done.returncode == 0 or lines, done.stderr
    assert "not checking stubs" not in done.stdout, done.stdout
    return lines + _missing_reexports(package, stubs, environment, folder)


def _missing_reexports(package: str, stubs: Path, environment: dict[str, str], folder: Path) -> list[str]:
    """stubtest leaves re-exported names to the module that defines them: look for those of each ``__init__`` here."""
    wanted: list[tuple[str, str]] = []
    for stub in sorted((stubs / package).rglob("__init__.pyi")):
        module = ".".join(stub.relative_to(stubs).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.parse(stub.read_text("utf-8")).body:
            if isinstance(node, ast.ImportFrom):
                wanted += [
                    (module, one.asname) for one in node.names if one.asname is not None and one.asname == one.name
                ]
    script = (
        "import importlib, json, sys\n"
        "for module, name in json.loads(sys.argv[1]):\n"
        "    if not hasattr(importlib.import_module(module), name):\n"
        "        print(f'{module}.{name} is not re-exported at runtime')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(wanted)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=folder,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def raises_when_made(paths: Iterable[Path], dotted: str) -> bool:
    """Is a class emitted with an ``__init__`` that takes anything and only raises (an excluded or pending one)?"""
    parts = dotted.split(".")
    for root in paths:
        for length in range(len(parts) - 1, 0, -1):
            base = root.joinpath(*parts[:length])
            file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
            if not file.is_file():
                continue
            nodes: list[ast.stmt] = ast.parse(file.read_bytes()).body
            found: ast.ClassDef | None = None
            for name in parts[length:]:
                found = next((node for node in nodes if isinstance(node, ast.ClassDef) and node.name == name), None)
                nodes = found.body if found is not None else []
            made = next((node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == "__init__"), None)
            if made is not None:
                body = [
                    node
                    for node in made.body
                    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
                ]
                return (
                    len(body) == 1 and isinstance(body[0], ast.Raise) and "NotImplementedError" in ast.unparse(body[0])
                )
    return False


def differences(lines: Iterable[str], paths: list[Path]) -> list[str]:
    """Inconsistencies that count.

    A class that only raises when it is made may take any arguments to do so, and needs no destructor.
    """
    out = []
    for line in lines:
        if line.endswith(".__del__ is not present at runtime"):
            continue
        found = _MISSING_STUB_OF_CLASS.match(line)
        if found is None or not raises_when_made(paths, found["name"]):
            out.append(line)
    return out


def _need(folder: Path) -> None:
    if not folder.is_dir():
        pytest.fail(f"{folder} is missing: run `porter sync` first")


# -- the emitted packages --------------------------------------------------------------------------------------------


def test_backend(source_root: Callable[[str], Path], tmp_path: Path) -> None:
    """All 42 factories of the Ascend backend, by stubs of upstream's ``asc``."""
    _need(BACKEND)
    package = "emitted_backend"
    count = make_stubs(
        source_root("deepinfer") / UPSTREAM_BACKEND,
        tmp_path / "stubs",
        package,
        lambda _module, name: name.endswith("_tl") and not name.startswith("_"),
    )
    assert count == 42
    run = tmp_path / "run"
    shutil.copytree(BACKEND, run / package)
    # Upstream modules without a factory of their own have nothing to be emitted for.
    for stub in sorted((tmp_path / "stubs" / package).glob("*.pyi")):
        if "_tl(" not in stub.read_text("utf-8") and stub.name != "__init__.pyi":
            stub.unlink()
    lines = run_stubtest(package, tmp_path / "stubs", [run, VENDOR], tmp_path)
    assert differences(lines, [run]) == []


@pytest.mark.parametrize(
    ("package", "least"),
    [("tile_kernels", 250), ("deep_ep", 30), ("deep_gemm", 30), ("flash_mla", 10), ("deep_select", 2)],
)
def test_vendor_package(package: str, least: int, source_root: Callable[[str], Path], tmp_path: Path) -> None:
    _need(VENDOR / package)
    count = make_stubs(source_root(package) / package, tmp_path / "stubs", package, lambda _module, _name: True)
    assert count >= least
    lines = run_stubtest(package, tmp_path / "stubs", [VENDOR], tmp_path)
    assert differences(lines, [VENDOR]) == []


# -- the method itself, on a package of a few lines ------------------------------------------------------------------


UPSTREAM = {
    "__init__.py": "from .a import f\n",
    "a.py": "from other import T\nimport jit\n@jit.wrap(x=1)\ndef f(a: T.x, b: int = 1, *, c='x'): return a\ndef g(*args, **kw): pass\nclass K:\n    def m(self, d, e=None): pass\n",
    "b.py": "__all__ = ['h']\ndef h(x): pass\ndef hidden(): pass\n",
}
EMITTED = {
    "__init__.py": "from toy.a import f as f\n",
    "a.py": "def f(a, b: int = 1, *, c='x'):\n    raise NotImplementedError('f')\ndef g(*args, **kw): pass\nclass K:\n    def __init__(self, *args, **kwargs):\n        'Doc.'\n        raise NotImplementedError('K')\n    def m(self, d, e=None): pass\ndef extra(): pass\n",
    "b.py": "__all__ = ['h']\ndef h(x): pass\n",
}


def _toy(tmp_path: Path, emitted: dict[str, str]) -> list[str]:
    for folder, files in (("up/toy", UPSTREAM), ("run/toy", emitted)):
        for name, text in files.items():
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    assert make_stubs(tmp_path / "up" / "toy", tmp_path / "stubs", "toy", lambda _module, _name: True) == 4
    paths = [tmp_path / "run"]
    return differences(run_stubtest("toy", tmp_path / "stubs", paths, tmp_path), paths)


def test_equal_package(tmp_path: Path) -> None:
    assert _toy(tmp_path, EMITTED) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("a.py", "def f(a, b: int = 1", "def f(x, b: int = 1", "toy.a.f"),
        ("a.py", "b: int = 1", "b: int = 2", "toy.a.f"),
        ("a.py", "b: int = 1", "b: int", "toy.a.f"),
        ("a.py", "a, b: int = 1, *, c='x'", "b: int = 1, a=2, *, c='x'", "toy.a.f"),
        ("a.py", "*, c='x'", "c='x'", "toy.a.f"),
        ("a.py", ", **kw", "", "toy.a.g"),
        ("a.py", "m(self, d, e=None)", "m(self, d)", "toy.a.K.m"),
        ("a.py", "def g(", "def renamed(", "toy.a.g"),
        ("b.py", "def h(x)", "def i(x)", "toy.b.h"),
        ("__init__.py", "f as f", "g as g", "toy.f"),
        ("a.py", "        raise NotImplementedError('K')", "        self.x = args", "toy.a.K.__init__"),
    ],
)
def test_unequal_package(file: str, old: str, new: str, said: str, tmp_path: Path) -> None:
    assert old in EMITTED[file]
    found = _toy(tmp_path, {**EMITTED, file: EMITTED[file].replace(old, new)})
    assert [line.split(" ")[0] for line in found] and all(line.startswith(said) for line in found)


def test_missing_output_fails(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="run `porter sync` first"):
        _need(tmp_path / "generated")
