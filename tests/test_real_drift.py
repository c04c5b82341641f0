"""Real drift: tile-kernels 1.0.0 against 2.1.0, each row held against an independent reading with the standard library's ast."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from porter.config import SOURCE_NAMES

SourceRoot = Callable[[str], Path]
SUBPACKAGES = ("engram", "mhc", "modeling/mhc", "moe", "quant", "rand", "transform", "transpose")


def wrappers(root: Path) -> dict[str, tuple[str, ast.FunctionDef]]:
    """Exported wrapper functions by public path, with file and definition, read by ast alone."""
    found: dict[str, tuple[str, ast.FunctionDef]] = {}
    package = root / "tile_kernels"
    for name in SUBPACKAGES:
        init = package / name / "__init__.py"
        if not init.is_file():
            continue
        for node in ast.parse(init.read_text()).body:
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            file = package / name / f"{node.module}.py"
            if not file.is_file():
                continue
            functions = {n.name: n for n in ast.parse(file.read_text()).body if isinstance(n, ast.FunctionDef)}
            for alias in node.names:
                public = alias.asname or alias.name
                if alias.name in functions:
                    found[f"tile_kernels.{name.replace('/', '.')}.{public}"] = (
                        f"tile_kernels/{name}/{node.module}.py",
                        functions[alias.name],
                    )
    return found


def signature(function: ast.FunctionDef) -> str:
    return ast.unparse(function.args) + str(ast.unparse(function.returns) if function.returns else "")


def body(function: ast.FunctionDef) -> str:
    rest = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return ast.unparse(ast.Module(rest, []))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory, source_root: SourceRoot) -> dict[str, dict[str, object]]:
    """Rows of `porter diff` by old symbol, from a lock made with 1.0.0 and the 2.1.0 tree named on the command line."""
    from porter.cli import app

    folder = tmp_path_factory.mktemp("drift")
    tiny = {name: folder / "tiny" / name / name for name in SOURCE_NAMES if name not in ("tile_kernels",)}
    for _name, path in tiny.items():
        path.mkdir(parents=True)
        (path / "__init__.py").write_text("def f(x):\n    return x\n")
    ops = tiny["deepinfer"] / "model_executor/layers/tilelang_ops"
    for backend in ("asc", "cuda"):
        (ops / backend).mkdir(parents=True)
        (ops / backend / "__init__.py").write_text("")
        (ops / backend / "one.py").write_text("import tilelang\n\n\n@tilelang.jit\ndef one_tl(n):\n    return None\n")
    for inner in (ops.parent.parent, ops.parent, ops):
        (inner / "__init__.py").write_text("")
    (folder / "overrides").mkdir()
    sources = "".join(f'{name} = "{path.parent}"\n' for name, path in tiny.items())
    (folder / "porter.toml").write_text(f'[sources]\n{sources}tile_kernels = "{source_root("tile_kernels_1_0_0")}"\n')
    runner = CliRunner()
    done = runner.invoke(app, ["sync", "--project", str(folder)])
    assert (folder / "porter.lock").is_file(), done.output
    done = runner.invoke(
        app,
        [
            "diff",
            "--project",
            str(folder),
            "--vendor",
            f"tile_kernels={source_root('tile_kernels')}",
            "--format",
            "json",
        ],
    )
    assert done.exit_code == 1, done.output
    assert isinstance(done.exception, SystemExit), done.exception
    data = json.loads(done.output)
    assert {row["source"] for row in data["changes"]} == {"tile_kernels"}
    return {row["symbol"]: row for row in data["changes"]}


def defines(file: Path, name: str) -> bool:
    return file.is_file() and any(
        isinstance(n, ast.FunctionDef) and n.name == name for n in ast.parse(file.read_text()).body
    )


def identity(path: str, name: str) -> str:
    return path.removesuffix(".py").replace("/", ".") + "." + name


def test_every_public_wrapper_has_the_right_row(rows: dict[str, dict[str, object]], source_root: SourceRoot) -> None:
    old, new = wrappers(source_root("tile_kernels_1_0_0")), wrappers(source_root("tile_kernels"))
    kept, dropped, added = old.keys() & new.keys(), old.keys() - new.keys(), new.keys() - old.keys()
    assert (len(kept), len(dropped), len(added)) == (20, 18, 37)
    renamed_to = {row["new"]["symbol"]: symbol for symbol, row in rows.items() if row["kind"] == "renamed?"}  # type: ignore[index]
    wrong: list[str] = []
    for name in sorted(dropped):
        kind = rows.get(identity(old[name][0], old[name][1].name), {}).get("kind")
        if kind not in ("removed", "renamed?"):
            wrong.append(f"{name} was dropped, reported as {kind}")
    for name in sorted(added):
        symbol = identity(new[name][0], new[name][1].name)
        if defines(source_root("tile_kernels_1_0_0") / new[name][0], new[name][1].name):
            # Newly exported by its package, but its public module had it before: not a new symbol.
            if rows.get(symbol, {}).get("kind") == "added":
                wrong.append(f"{name} existed, reported as added")
            continue
        kind = rows.get(symbol, {}).get("kind")
        if kind != "added" and symbol not in renamed_to:
            wrong.append(f"{name} was added, reported as {kind}")
    for name in sorted(kept):
        (old_file, before), (new_file, after) = old[name], new[name]
        old_id, new_id = identity(old_file, before.name), identity(new_file, after.name)
        row = rows.get(new_id) or rows.get(old_id)
        if old_id != new_id:
            if rows.get(old_id, {}).get("kind") not in ("removed", "renamed?"):
                wrong.append(f"{name} moved from {old_file} to {new_file}, reported as {row}")
            continue
        kinds = {row["kind"], *row["also"]} if row else set()  # type: ignore[misc]
        if ("signature" in kinds) != (signature(before) != signature(after)):
            wrong.append(
                f"{name}: signature {'moved' if signature(before) != signature(after) else 'stayed'}, reported as {kinds}"
            )
        if body(before) != body(after) and "body" not in kinds:
            wrong.append(f"{name}: body moved, reported as {kinds}")
    assert wrong == []


def test_renames_are_proposed_with_their_similarity(rows: dict[str, dict[str, object]]) -> None:
    proposed = [row for row in rows.values() if row["kind"] == "renamed?"]
    assert proposed
    assert all(0.6 <= row["similarity"] <= 1.0 for row in proposed)  # type: ignore[operator]


def test_a_release_against_itself_has_no_row(source_root: SourceRoot) -> None:
    from porter.drift import compare
    from porter.sources.progress import QuietProgress
    from porter.surface.read import read_surfaces

    surfaces, _ = read_surfaces("tile_kernels", source_root("tile_kernels_1_0_0"), progress=QuietProgress())
    assert compare(surfaces, surfaces) == ()
