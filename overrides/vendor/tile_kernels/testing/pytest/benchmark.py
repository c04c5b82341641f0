"""Benchmarks: options, marker, fixtures and comparison with baselines, as ``tile_kernels.testing.pytest.benchmark`` has them.

Times are wall-clock times of the whole call, with the accelerator waited for where there is one.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch

from .common import get_tests_dir, item_source_file, merge_mode, validate_merge_mode

_OUTPUT = "_TK_BENCHMARK_OUTPUT"


def pytest_addoption(parser):
    """Add ``--run-benchmark``, ``--benchmark-output``, ``--benchmark-verbose``, ``-K`` and ``--refresh-baseline``."""
    parser.addoption("--run-benchmark", action="store_true", default=False, help="run the benchmarks too")
    parser.addoption("--benchmark-output", default=None, help="file to append each result to (JSON lines)")
    parser.addoption("--benchmark-verbose", action="store_true", default=False, help="show every figure of a result")
    parser.addoption(
        "-K",
        "--key-filter",
        action="append",
        default=[],
        help="regular expressions over test names, joined by and, or, not; repeatable",
    )
    parser.addoption(
        "--refresh-baseline", action="store_true", default=False, help="write the results into the baselines"
    )


def pytest_configure(config):
    """Register ``benchmark``, read the filters, and settle where results are collected.

    Raises:
        pytest.UsageError: a filter cannot be read, or ``--refresh-baseline`` comes without ``--run-benchmark``.
    """
    try:
        config._tk_filters = [_matcher(text) for text in config.getoption("--key-filter")]
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error
    config.addinivalue_line("markers", "benchmark: a benchmark; left out without --run-benchmark")
    config._tk_results = []
    run = config.getoption("--run-benchmark", default=False)
    if config.getoption("--refresh-baseline", default=False):
        if not run:
            raise pytest.UsageError("--refresh-baseline needs --run-benchmark")
        validate_merge_mode()
        chosen = getattr(config.option, "markexpr", None)
        config.option.markexpr = f"benchmark and ({chosen})" if chosen else "benchmark"
    if run and config.getoption("--benchmark-output", default=None) is None:
        # Workers inherit the name through the environment and append to the same file.
        if _OUTPUT not in os.environ:
            handle, os.environ[_OUTPUT] = tempfile.mkstemp(prefix="tk_bench_", suffix=".jsonl")
            os.close(handle)
        config.option.benchmark_output = os.environ[_OUTPUT]


def pytest_collection_modifyitems(config, items):
    """Leave out what the filters do not name, and benchmarks unless they were asked for."""
    filters = getattr(config, "_tk_filters", [])
    left = [item for item in items if filters and not any(matches(item.nodeid) for matches in filters)]
    if left:
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=left)
    if not config.getoption("--run-benchmark"):
        skip = pytest.mark.skip(reason="benchmarks run with --run-benchmark")
        for item in items:
            if "benchmark" in item.keywords:
                item.add_marker(skip)


def pytest_sessionfinish(session, exitstatus):
    """Compare with the baselines, refresh them when asked, and fail the run as ``TK_BENCHMARK_FAIL_MODE`` says."""
    config = session.config
    results = [] if hasattr(config, "workerinput") else _results(config)
    if not results:
        return
    baselines = _baselines()
    slower, faster, missing = _compared(results, baselines)
    config._tk_compared = (results, baselines, slower, faster, missing)
    if exitstatus != 0:
        return
    if config.getoption("--refresh-baseline"):
        config._tk_refreshed = _refresh(results)
        return
    mode = os.environ.get("TK_BENCHMARK_FAIL_MODE", "regression").strip().lower()
    if (slower and mode in ("regression", "missing-regression")) or (
        missing and mode in ("missing", "missing-regression")
    ):
        session.exitstatus = 1


def pytest_terminal_summary(terminalreporter, config):
    """List the results beside their baselines, and those that moved."""
    if not hasattr(config, "_tk_compared"):
        return
    results, baselines, slower, faster, missing = config._tk_compared
    terminalreporter.section("Benchmarks")
    for row in sorted(results, key=_name):
        base = baselines.get(_name(row))
        text = (
            f"{row['time_us']:12.1f} us  "
            + (f"{row['time_us'] / base['time_us']:6.2f}x" if base else "    new")
            + f"  {_name(row)}"
        )
        if config.getoption("--benchmark-verbose"):
            figures = {"bandwidth_gbs": row.get("bandwidth_gbs"), **row.get("extras", {})}
            text += "".join(f"  {key}={value}" for key, value in figures.items() if value is not None)
        terminalreporter.write_line(text)
    mean = math.exp(sum(math.log(max(row["time_us"], 1e-3)) for row in results) / len(results))
    terminalreporter.write_line(f"{mean:12.1f} us  geometric mean of {len(results)}")
    for title, rows in (("slower", slower), ("faster", faster)):
        for name in rows:
            terminalreporter.write_line(f"{title} than its baseline: {name}")
    terminalreporter.write_line(f"{len(missing)} without a baseline, {len(slower)} slower, {len(faster)} faster")
    if hasattr(config, "_tk_refreshed"):
        terminalreporter.write_line(f"{config._tk_refreshed} baselines written to {_baseline_folder()}")


@pytest.fixture
def benchmark_record(request):
    """A function ``(*, kernel, operation, params, time_us, bandwidth_gbs=None, extras=None)`` that keeps a result.

    It prints the result, appends it to ``--benchmark-output``, and warns when it is slower than its baseline.
    """
    config, node = request.config, request.node
    baselines = _baselines()

    def record(*, kernel, operation, params, time_us, bandwidth_gbs=None, extras=None):
        callspec = getattr(node, "callspec", None)
        row = {
            "kernel": kernel,
            "operation": operation,
            "params": dict(sorted(params.items())) if params else params,
            "param_id": None if callspec is None else callspec.id,
            "source_file": item_source_file(node),
            "time_us": round(time_us, 2),
        }
        if bandwidth_gbs is not None:
            row["bandwidth_gbs"] = round(bandwidth_gbs, 4)
        if extras:
            row["extras"] = {
                key: round(value, 4) if isinstance(value, float) else value for key, value in extras.items()
            }
        print(f"  {_name(row)}: {time_us:.1f} us")
        output = config.getoption("--benchmark-output")
        if output:
            with open(output, "a", encoding="utf-8") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        config._tk_results.append(row)
        if _compared([row], baselines)[0]:
            warnings.warn(
                f"{_name(row)}: {time_us:.1f} us, its baseline is {baselines[_name(row)]['time_us']:.1f} us",
                stacklevel=2,
            )

    return record


@pytest.fixture
def benchmark_timer():
    """A function ``(fn, **overrides)`` that returns the mean time of a call in microseconds.

    ``warmup`` and ``rep``: milliseconds spent before and while measuring (0 and 30); other names are taken and mean nothing.
    """

    def timer(fn, **overrides):
        _repeat(fn, float(overrides.get("warmup", 0)) / 1e3)
        seconds, calls = _repeat(fn, float(overrides.get("rep", 30)) / 1e3)
        return seconds / calls * 1e6

    return timer


def _repeat(fn: Callable[[], object], budget: float) -> tuple[float, int]:
    """Seconds and number of calls of ``fn`` within a budget of seconds, at least one call."""
    calls, begin = 0, time.perf_counter()
    while True:
        fn()
        calls += 1
        if torch.accelerator.is_available():
            # NEURON: host sync a timer waits for what it times
            torch.accelerator.synchronize()
        seconds = time.perf_counter() - begin
        if seconds >= budget:
            return seconds, calls


def _matcher(text: str) -> Callable[[str], bool]:
    """A test of names from regular expressions joined by ``or``, ``and`` (which may be left out) and ``not``."""
    lexer = shlex.shlex(text, posix=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    words = [word[1:-1] if len(word) > 1 and word[0] == word[-1] and word[0] in "'\"" else word for word in lexer]
    if not words:
        raise ValueError("-K needs an expression")
    either, every, negated = [[]], 0, False
    for word in words:
        if word == "not":
            negated = not negated
        elif word in ("and", "or"):
            if every == 0 or negated:
                raise ValueError(f"-K {text!r}: expected a regular expression before {word!r}")
            every = 0 if word == "or" else -1
            if word == "or":
                either.append([])
        else:
            try:
                either[-1].append((re.compile(word), negated))
            except re.error as error:
                raise ValueError(f"-K {text!r}: {word!r} is no regular expression: {error}") from error
            every, negated = 1, False
    if every != 1 or negated:
        raise ValueError(f"-K {text!r} ends too early")
    return lambda name: any(all((pattern.search(name) is not None) != no for pattern, no in group) for group in either)


def _name(row: dict) -> str:
    """What tells a result from others: kernel, operation and parameters."""
    given = row.get("param_id") or ",".join(
        f"{key}={value}" for key, value in sorted((row.get("params") or {}).items())
    )
    return f"{row['kernel']}/{row['operation']}[{given or None}]"


def _results(config) -> list[dict]:
    if config._tk_results:
        return config._tk_results
    output = config.getoption("--benchmark-output", default=None)
    return list(_lines(Path(output))) if output and os.path.exists(output) else []


def _lines(path: Path) -> Iterable[dict]:
    return (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip())


def _baseline_folder() -> str | None:
    tests = get_tests_dir()
    return os.environ.get("TK_BENCHMARK_BASELINES_DIR") or (
        os.path.join(tests, "benchmark_baselines") if tests else None
    )


def _baselines() -> dict[str, dict]:
    folder = _baseline_folder()
    rows: dict[str, dict] = {}
    for path in sorted(Path(folder).rglob("*.jsonl")) if folder and os.path.isdir(folder) else ():
        rows.update({_name(row): row for row in _lines(path)})
    return rows


def _compared(results: list[dict], baselines: dict[str, dict]) -> tuple[list[str], list[str], list[str]]:
    """Names of the results that are slower and faster than their baselines, and of those without one."""
    share = float(os.environ.get("TK_BENCHMARK_REGRESSION_THRESHOLD", "0.05"))
    least = float(os.environ.get("TK_BENCHMARK_MIN_DELTA_US", "0.8"))
    slower, faster, missing = [], [], []
    for row in results:
        base = baselines.get(_name(row))
        if base is None:
            missing.append(_name(row))
            continue
        ratio, more = row["time_us"] / base["time_us"], row["time_us"] - base["time_us"]
        if ratio > 1 + share and more >= least:
            slower.append(_name(row))
        elif ratio < 1 - share and -more >= least:
            faster.append(_name(row))
    return slower, faster, missing


def _refresh(results: list[dict]) -> int:
    """Merge results into the baseline files of their tests; how many were written."""
    folder, written = _baseline_folder(), 0
    for source in sorted({row["source_file"] for row in results if row.get("source_file")}) if folder else ():
        path = Path(folder) / (source.removesuffix(".py") + ".jsonl")
        old = {_name(row): row for row in _lines(path)} if path.exists() and merge_mode() != "overwrite" else {}
        new = {_name(row): row for row in results if row.get("source_file") == source}
        merged = {**new, **old} if merge_mode() == "fill" else {**old, **new}
        written += len(new)
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [{key: value for key, value in row.items() if key != "source_file"} for _, row in sorted(merged.items())]
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return written
