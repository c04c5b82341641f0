"""The demo: what it makes is made once, runs by environment variables alone, and fails with one message and a fix."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from porter.demo import workspace as workspaces
from porter.demo.api import DemoOptions, demo, render
from porter.demo.engine import Engine
from porter.demo.errors import BuildError, EngineError, MissingPackagesError
from porter.demo.workspace import Workspace
from porter.seams import api
from porter.seams.registry import SEAMS
from tests.e2e.conftest import ARGUMENTS, ROOT


def test_the_environment_says_cpu_and_keeps_nothing_of_the_users_device(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DEEPINFER_USE_NEXTN_DECODE", "5")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    found = Workspace(tmp_path, tmp_path / "checkout").environment(DEEPINFER_NEURON_MEMORY_GB="2")
    assert {name: value for name, value in found.items() if name.startswith("DEEPINFER_")} == {
        "DEEPINFER_ACCELERATOR": "neuron",
        "DEEPINFER_NEURON_DEVICE": "cpu",
        "DEEPINFER_NEURON_MEMORY_GB": "2",
    }
    assert "CUDA_VISIBLE_DEVICES" not in found
    assert found["PYTHONPATH"] == f"{tmp_path / 'checkout'}{os.pathsep}/somewhere"


def test_a_missing_package_is_named_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(workspaces.NEEDED, "no_such_module", "no-such-distribution")
    with pytest.raises(MissingPackagesError, match="no-such-distribution") as caught:
        workspaces.require_packages()
    assert caught.value.fix and caught.value.exit_code == 2


def test_what_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / "half").touch()
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        workspaces._once(tmp_path / "target", make)
    assert list(tmp_path.iterdir()) == []


def test_another_seam_or_file_is_another_checkout(source_root: Callable[[str], Path]) -> None:
    checkout, files = source_root("deepinfer"), {"deepinfer/neuron_ops/one.py": b"ONE = 1\n"}
    plan = api.plan(checkout, files)
    keys = {
        workspaces.checkout_key(plan, "sha"),
        workspaces.checkout_key(api.plan(checkout, files, seams=SEAMS[:-1]), "sha"),
        workspaces.checkout_key(api.plan(checkout, {**files, "deepinfer/neuron_ops/two.py": b""}), "sha"),
        workspaces.checkout_key(plan, "of another release"),
    }
    assert len(keys) == 4
    assert workspaces.checkout_key(api.plan(checkout, files), "sha") in keys


def test_a_failed_build_shows_the_compilers_words(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "setup.py").write_text("raise SystemExit('fatal error: no compiler')")
    with pytest.raises(BuildError, match="no compiler") as caught:
        workspaces._built(checkout, tmp_path / "extension")
    assert caught.value.fix
    assert not (tmp_path / "extension").exists()


def test_a_child_that_dies_at_start_shows_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "deepinfer").mkdir()
    (tmp_path / "deepinfer" / "__init__.py").write_text("raise RuntimeError('broken checkout')")
    with pytest.raises(EngineError, match="broken checkout"):
        Engine(Workspace(tmp_path, tmp_path), tmp_path, {})


@pytest.mark.engine
def test_the_checkout_is_upstream_with_the_backend_and_no_build_files(workspace: Workspace) -> None:
    from porter.config import load_config
    from porter.judging import payload
    from porter.seams import api

    plan = api.plan(workspace.checkout, payload(load_config(ROOT / "porter.toml").out_path))
    assert plan.up_to_date
    assert not (workspace.checkout / "build").exists()
    (library,) = workspace.checkout.glob("deepinfer/_so/neuron-*/_C.*.so")
    assert workspaces.prepare(load_config(ROOT / "porter.toml")) == workspace
    assert library.stat().st_mtime_ns == next(workspace.checkout.glob("deepinfer/_so/*/_C.*")).stat().st_mtime_ns


@pytest.mark.engine
def test_the_command_prints_prompts_texts_and_speed(workspace: Workspace) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "porter.demo", "The porter", "At night", "--max-tokens", "4"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.fullmatch(
        r"prompt  'The porter'\ntext    '.+'  \(\w+\)\n\nprompt  'At night'\ntext    '.+'  \(\w+\)\n\n"
        r"\d tokens in [\d.]+ s: [\d.]+ tokens/s; engine started in [\d.]+ s\n",
        done.stdout,
    ), done.stdout


@pytest.mark.engine
@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        ({"context_parallel_size": 2}, {}, "context parallelism: not supported on Neuron"),
        ({}, {"DEEPINFER_USE_NEXTN_DECODE": "5"}, r"speculative decoding \(MTP, DSpark\): not supported on Neuron"),
        ({}, {"DEEPINFER_ZERO_OVERHEAD_SCHEDULING": "1"}, "zero-overhead scheduling: not supported on Neuron"),
        ({}, {"DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE": "compact"}, "YOCO bounded replay: not supported on Neuron"),
        ({}, {"DEEPINFER_ENFORCE_EAGER": "0"}, "graph capture: not supported on Neuron"),
    ],
)
def test_an_excluded_feature_is_refused_by_name(
    workspace: Workspace, model: Path, arguments: dict[str, int], environment: dict[str, str], words: str
) -> None:
    with pytest.raises(EngineError, match=words):
        Engine(workspace, model, {**ARGUMENTS, **arguments}, environment=environment)


@pytest.mark.engine
def test_the_function_gives_the_same_as_the_engine(workspace: Workspace, engine: Engine) -> None:
    from porter.config import load_config

    options = DemoOptions(prompts=("The porter", "At night"), max_tokens=4, offline=True)
    result = demo(load_config(ROOT / "porter.toml"), options)
    expected = engine.generate(options.prompts, {"temperature": 0, "max_tokens": 4})
    assert [c.tokens for c in result.answer.completions] == [c.tokens for c in expected.completions]
    assert result.checkout == workspace.checkout
    assert "The porter" in render(result)
