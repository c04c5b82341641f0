"""The project as it stands: lock, overrides and emitted tree agree, and what is emitted works on its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parents[1]
VENDOR = ROOT / "generated/deepinfer/neuron_ops/vendor"
BACKEND = ROOT / "generated/deepinfer/model_executor/layers/tilelang_ops/neuron"


def run(*arguments: str) -> tuple[int, str]:
    from porter.cli import app

    result = CliRunner().invoke(app, [arguments[0], "--project", str(ROOT), *arguments[1:]])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_the_check_is_clean() -> None:
    assert run("check") == (0, "clean\n")


def test_the_lock_is_what_the_pinned_upstream_gives() -> None:
    code, out = run("sync", "--dry-run")
    assert out.splitlines()[0] == "nothing changed" and code == 0, out
    assert run("diff") == (0, "no change\n")


def test_all_42_factories_are_decided() -> None:
    data = json.loads(run("status", "--json")[1])
    factories = data["factories"]
    assert factories["total"] == 42 == factories["implemented"] + factories["excluded"]
    assert (factories["pending"], factories["stale"]) == (0, 0)
    assert data["vendor"].keys() == {"deep_ep", "deep_gemm", "deep_select", "flash_mla", "tile_kernels", "tilelang"}


def modules(folder: Path) -> list[str]:
    names = (
        path.relative_to(folder).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")
        for path in folder.rglob("*.py")
    )
    return sorted(names)


def test_every_emitted_vendor_module_imports_alone() -> None:
    code = (
        "import importlib, sys\n"
        "for name in sys.stdin.read().split():\n"
        "    importlib.import_module(name)\n"
        "foreign = {n.split('.')[0] for n in sys.modules} & {'porter', 'overrides', 'libcst', 'jinja2', 'tvm', 'triton_kernels'}\n"
        "assert not foreign, foreign\n"
        "here = sys.argv[1]\n"
        "for name in ('deep_ep', 'deep_gemm', 'deep_select', 'flash_mla', 'tile_kernels', 'tilelang'):\n"
        "    assert sys.modules[name].__file__.startswith(here), name\n"
    )
    environment = {"PYTHONPATH": str(VENDOR), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(VENDOR)],
        input="\n".join(modules(VENDOR)),
        text=True,
        capture_output=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr


def test_every_emitted_backend_module_imports_and_offers_the_upstream_names() -> None:
    code = (
        "import importlib, json, sys\n"
        "sys.path[:0] = sys.argv[1:3]\n"
        "names = json.load(sys.stdin)\n"
        "found = {}\n"
        "for module in names:\n"
        "    loaded = importlib.import_module('neuron.' + module)\n"
        "    found.update({n: module for n in vars(loaded) if n.endswith('_tl') and not n.startswith('_')})\n"
        "print(json.dumps(sorted(found)))\n"
    )
    lock = json.loads((ROOT / "porter.lock").read_text())["surfaces"]["tilelang_ops.asc"]
    done = subprocess.run(
        [sys.executable, "-c", code, str(BACKEND.parent), str(VENDOR)],
        input=json.dumps([name for name in modules(BACKEND) if name and name != "__init__"]),
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == sorted(symbol["qualname"] for symbol in lock["symbols"].values())


@pytest.mark.parametrize("entry", ["prepare_cp_mirror_tl", "get_accept_result_tl"])
def test_excluded_factories_raise_the_agreed_message(entry: str) -> None:
    from porter.config import load_config
    from porter.lock import read_lock

    config = load_config(ROOT / "porter.toml")
    symbol = next(
        s
        for s in read_lock(config.lock_path).symbols.values()
        if s.qualname == entry and s.source == "tilelang_ops.asc"
    )
    module = symbol.module.rpartition(".")[2]
    arguments = ", ".join("None" for _ in symbol.signature.parameters) if symbol.signature else ""
    code = f"import sys; sys.path[:0] = {[str(BACKEND.parent), str(VENDOR)]!r}\nfrom neuron.{module} import {entry}\n{entry}({arguments})"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True)
    assert f"NotImplementedError: {entry}: not supported on Neuron (basic mode)" in done.stderr


def test_emitted_text_names_no_machine() -> None:
    for path in (ROOT / "generated").rglob("*"):
        if path.is_file() and path.suffix in (".py", ".md"):
            text = path.read_text()
            assert str(ROOT) not in text and "/tmp/" not in text, path
