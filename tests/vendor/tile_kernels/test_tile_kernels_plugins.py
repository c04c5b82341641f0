"""The pytest plugins of the emitted tile_kernels, loaded by name into runs of their own as the engine's conftest loads them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from emitted_packages import emitted

CONFTEST = """
pytest_plugins = [
    "tile_kernels.testing.pytest.benchmark",
    "tile_kernels.testing.pytest.gpu_mem",
    "tile_kernels.testing.pytest.random",
    "tile_kernels.testing.pytest.tilelang_warning",
    "tile_kernels.testing.pytest.xdist_failfast",
    "tile_kernels.testing.pytest.precompile",
]
"""

TESTS = """
import random
import sys
import pytest
import torch

@pytest.mark.parametrize("num_tokens", [1, 2])
def test_seeded(num_tokens, seed):
    first = torch.rand(3)
    torch.manual_seed(seed)
    assert torch.equal(torch.rand(3), first)
    print("drawn", num_tokens, seed)

def test_warns():
    print("2026-01-01 10:00:00  [TileLang:tilelang.cache:WARNING] (file.py:1): slow", file=sys.stderr)

@pytest.mark.benchmark
@pytest.mark.parametrize("size", [4, 8], ids=lambda size: f"size={size},num_sms=3")
def test_speed(size, benchmark_timer, benchmark_record):
    calls = []
    time = benchmark_timer(lambda: calls.append(1), rep=1)
    assert 0 < time < 1e5 and len(calls) > 1
    benchmark_record(kernel="append", operation="fwd", params={"size": size}, time_us=time, bandwidth_gbs=1.5, extras={"calls": 2.0})
"""


PLUGINS = tuple(
    f"tile_kernels.testing.pytest.{name}"
    for name in ("benchmark", "gpu_mem", "random", "tilelang_warning", "xdist_failfast", "precompile")
)
COMMON = ("-q", "-p", "no:cacheprovider", "--import-mode=importlib", ".")


@pytest.fixture
def run(tk: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Run pytest with the plugins on the tests above, in this process; its exit code and output."""
    (tmp_path / "test_sample.py").write_text(TESTS)
    from tile_kernels.testing.pytest import tilelang_warning

    def call(*arguments: str, **variables: str) -> tuple[int, str]:
        text = io.StringIO()
        with monkeypatch.context() as patch:
            for name in [name for name in os.environ if name.startswith(("TK_", "_TK_", "PYTEST_"))]:
                patch.delenv(name)
            for name, value in {"TK_TESTS_DIR": str(tmp_path), **variables}.items():
                patch.setenv(name, value)
            patch.chdir(tmp_path)
            tilelang_warning._by_test.clear()
            chosen = [word for name in PLUGINS for word in ("-p", name)]
            with redirect_stdout(text), redirect_stderr(text):
                code = pytest.main([*chosen, *arguments, "--capture=sys", *COMMON])
            for name in [name for name in os.environ if name.startswith("_TK_")]:
                del os.environ[name]
        return int(code), text.getvalue()

    return call


def test_the_engines_conftest_loads_them_by_name(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_sample.py").write_text(TESTS)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TK_", "_TK_", "PYTEST_"))}
    environment = {**kept, "PYTHONPATH": str(emitted()), "TK_TESTS_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", *COMMON]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0 and "3 passed, 2 skipped" in done.stdout, done.stdout + done.stderr


def test_benchmarks_are_left_out_unless_asked_for(run: Callable[..., tuple[int, str]]) -> None:
    code, text = run("-rs")
    assert code == 0 and "3 passed, 2 skipped" in text and "--run-benchmark" in text
    assert "TileLang warnings" in text and "1 warnings in 1 tests" in text


def test_filters(run: Callable[..., tuple[int, str]]) -> None:
    for expression, passed in (("seeded", 2), ("seeded not 2", 1), ("warns or seeded and 1", 2), ("'seeded'", 2)):
        code, text = run("-K", expression)
        assert code == 0 and f"{passed} passed" in text, text
    for expression in ("", "and x", "x or", "(", "x not"):
        code, text = run("-K", expression)
        assert code == 4 and "-K" in text, text


def test_seeds(run: Callable[..., tuple[int, str]]) -> None:
    drawn = [
        sorted(line for line in run("-rP", "-K", "seeded", *more)[1].splitlines() if "drawn" in line)
        for more in ((), (), ("--seed", "5"))
    ]
    assert drawn[0] == drawn[1] != drawn[2] and len(drawn[0]) == 2


def test_results_become_baselines_and_baselines_catch_regressions(
    run: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    code, text = run("--refresh-baseline")
    assert code == 4 and "--run-benchmark" in text
    code, text = run("--run-benchmark", "--refresh-baseline")
    assert code == 0 and "2 baselines written" in text and "3 deselected" in text, text
    shard = tmp_path / "benchmark_baselines" / "test_sample.jsonl"
    rows = [json.loads(line) for line in shard.read_text().splitlines()]
    assert [row["param_id"] for row in rows] == ["size=4,num_sms=3", "size=8,num_sms=3"] and "source_file" not in rows[
        0
    ]
    assert rows[0]["kernel"] == "append" and rows[0]["bandwidth_gbs"] == 1.5 and rows[0]["extras"] == {"calls": 2.0}
    shard.write_text("".join(json.dumps({**row, "time_us": 1e-6}) + "\n" for row in rows))
    output = tmp_path / "results.jsonl"
    code, text = run(
        "--run-benchmark", "--benchmark-output", str(output), "--benchmark-verbose", TK_BENCHMARK_MIN_DELTA_US="0"
    )
    assert (
        code == 1 and "slower than its baseline: append/fwd[size=4,num_sms=3]" in text and "bandwidth_gbs=1.5" in text
    ), text
    assert len(output.read_text().splitlines()) == 2
    assert run("--run-benchmark", TK_BENCHMARK_MIN_DELTA_US="0", TK_BENCHMARK_FAIL_MODE="none")[0] == 0
    shard.unlink()
    assert run("--run-benchmark", TK_BENCHMARK_FAIL_MODE="missing")[0] == 1
    assert run("--run-benchmark")[0] == 0
    code, text = run("--run-benchmark", "--refresh-baseline", TK_TEST_MERGE_MODE="sometimes")
    assert code == 4 and "TK_TEST_MERGE_MODE" in text


def test_memory_profiles(run: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    profiles = tmp_path / "profiles"
    variables = {"TK_GPU_MEM_PROFILES_DIR": str(profiles)}
    code, text = run("--refresh-mem", "-m", "large_gpu_mem", **variables)
    assert code == 0 and "3 profiles written" in text, text
    rows = [json.loads(line) for line in (profiles / "test_sample.jsonl").read_text().splitlines()]
    assert {row["test_id"] for row in rows} == {
        "test_sample.py::test_seeded[1]",
        "test_sample.py::test_seeded[2]",
        "test_sample.py::test_warns",
    }
    assert all(row["peak_gpu_mb"] >= 0 for row in rows)
    # Known and small: no longer counted as large.
    code, text = run("-m", "not large_gpu_mem", **variables)
    assert code == 0 and "3 passed" in text, text
    code, text = run("--refresh-mem", TK_TEST_MERGE_MODE="fill", **variables)
    assert "3 deselected" in text, text


def test_a_cache_run_keeps_the_tests_with_tokens(run: Callable[..., tuple[int, str]]) -> None:
    code, text = run(TK_PRECOMPILE="1")
    assert code == 0 and "2 passed" in text and "3 deselected" in text, text


def test_merge_modes_and_places(tk: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tile_kernels.testing.pytest import common

    monkeypatch.delenv("TK_TESTS_DIR", raising=False)
    monkeypatch.setenv("TK_BENCHMARK_TESTS_DIR", str(tmp_path))
    assert common.get_tests_dir() == str(tmp_path) and common.merge_mode() in common.MERGE_MODES

    class Item:
        path = tmp_path / "a" / "test_b.py"

    assert common.item_source_file(Item) == os.path.join("a", "test_b.py")
    Item.path = tmp_path.parent / "test_c.py"
    assert common.item_source_file(Item) is None
    monkeypatch.delenv("TK_BENCHMARK_TESTS_DIR")
    assert common.item_source_file(Item) is None
    for text, mode in (("fill", "fill"), ("OVERWRITE ", "overwrite"), ("other", "replace")):
        monkeypatch.setenv("TK_TEST_MERGE_MODE", text)
        assert common.merge_mode() == mode
    with pytest.raises(pytest.UsageError):
        common.validate_merge_mode()
