"""Peak device memory of each test, as ``tile_kernels.testing.pytest.gpu_mem`` measures and keeps it.

Without an accelerator that counts its memory, peaks are 0.
"""

from __future__ import annotations

import gc
import json
import os
import tempfile
from pathlib import Path

import pytest
import torch

from .common import item_source_file, merge_mode, validate_merge_mode

_OUTPUT = "_TK_GPU_MEM_OUTPUT"
_MIB = 1 << 20


def pytest_addoption(parser):
    """Add ``--gpu-mem-output``, ``--refresh-mem``, ``--gpu-mem-threshold`` and ``--gpu-mem-flush-interval``."""
    parser.addoption("--gpu-mem-output", default=None, help="file to append each test's peak memory to (JSON lines)")
    parser.addoption(
        "--refresh-mem", action="store_true", default=False, help="write the measured peaks into the profiles"
    )
    parser.addoption("--gpu-mem-threshold", default=15000.0, type=float, help="MB above which a test counts as large")
    parser.addoption(
        "--gpu-mem-flush-interval", default=300.0, type=float, help="accepted; profiles are written at the end of a run"
    )


def pytest_configure(config):
    """Register ``large_gpu_mem``; with ``--refresh-mem``, settle where the peaks are collected."""
    config.addinivalue_line("markers", "large_gpu_mem: needs much device memory; run apart from the others")
    if not config.getoption("--refresh-mem", default=False):
        return
    validate_merge_mode()
    if config.getoption("--gpu-mem-output", default=None) is None:
        # Workers inherit the name through the environment and append to the same file.
        if _OUTPUT not in os.environ:
            handle, os.environ[_OUTPUT] = tempfile.mkstemp(prefix="gpu_mem_", suffix=".jsonl")
            os.close(handle)
        config.option.gpu_mem_output = os.environ[_OUTPUT]


def pytest_collection_modifyitems(config, items):
    """Mark tests as large by their profiles, those without one too; in ``fill`` mode leave out those that have one."""
    profiles = _read(_folder())
    if config.getoption("--refresh-mem", default=False) and merge_mode() == "fill":
        known = [item for item in items if _key(item) in profiles]
        items[:] = [item for item in items if item not in known]
        if known:
            config.hook.pytest_deselected(items=known)
    threshold = config.getoption("--gpu-mem-threshold")
    for item in items:
        if "large_gpu_mem" not in item.keywords and profiles.get(_key(item), float("inf")) > threshold:
            item.add_marker(pytest.mark.large_gpu_mem)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Measure from a test's setup to its teardown and record the peak of one that passed."""
    outcome = yield
    output = item.config.getoption("--gpu-mem-output", default=None)
    if output is None:
        return
    if outcome.get_result().failed:
        item._tk_test_failed = True
    if call.when == "setup":
        gc.collect()
        item._tk_memory_before = _start()
    elif call.when == "call":
        item._tk_peak = max(_peak() - getattr(item, "_tk_memory_before", 0), 0) / _MIB
    elif not getattr(item, "_tk_test_failed", False) and hasattr(item, "_tk_peak") and _key(item) is not None:
        with open(output, "a", encoding="utf-8") as file:
            file.write(
                json.dumps({"test_id": _key(item), "peak_gpu_mb": round(item._tk_peak, 1)}, ensure_ascii=False) + "\n"
            )


def pytest_sessionfinish(session, exitstatus):
    """After a run without failures, merge the peaks into the profiles when ``--refresh-mem`` asks for it."""
    config = session.config
    if hasattr(config, "workerinput") or exitstatus != 0 or not config.getoption("--refresh-mem", default=False):
        return
    measured = _records(config)
    folder = _folder()
    if folder is None or not measured:
        return
    files = {test.partition("::")[0] for test in measured if test.partition("::")[0].endswith(".py")}
    mode, old = merge_mode(), _read(folder)
    kept = {test: peak for test, peak in old.items() if mode != "overwrite" or test.partition("::")[0] not in files}
    merged = {**measured, **kept} if mode == "fill" else {**kept, **measured}
    for name in files:
        path = Path(folder) / (name.removesuffix(".py") + ".jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [
            {"test_id": test, "peak_gpu_mb": peak}
            for test, peak in sorted(merged.items())
            if test.partition("::")[0] == name
        ]
        part = path.with_suffix(".jsonl.tmp")
        part.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
        part.replace(path)
    config._tk_gpu_mem_written = len(measured)


def pytest_terminal_summary(terminalreporter, config):
    """List the measured peaks, and say how many went into the profiles."""
    if config.getoption("--gpu-mem-output", default=None) is None:
        return
    threshold, peaks = config.getoption("--gpu-mem-threshold"), _records(config)
    terminalreporter.section("Peak device memory")
    for test, peak in sorted(peaks.items(), key=lambda row: -row[1]):
        terminalreporter.write_line(f"{peak:10.1f} MB  {'large' if peak > threshold else '     '}  {test}")
    written = getattr(config, "_tk_gpu_mem_written", None)
    if written is not None:
        terminalreporter.write_line(f"{written} profiles written to {_folder()}")


def _folder() -> str | None:
    return os.environ.get("TK_GPU_MEM_PROFILES_DIR") or None


def _key(item) -> str | None:
    """A test's name below the tests' folder, without the number of compute units, on which memory does not depend."""
    source = item_source_file(item)
    return None if source is None else _without_units(source + "".join(item.nodeid.partition("::")[1:]))


def _without_units(name: str) -> str:
    head, bracket, tail = name.rpartition("[")
    if not bracket or not tail.endswith("]"):
        return name
    kept = [field for field in tail[:-1].split(",") if field and not field.startswith("num_sms=")]
    return f"{head}[{','.join(kept)}]" if kept else head


def _lines(path: Path) -> dict[str, float]:
    peaks: dict[str, float] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip():
            row = json.loads(line)
            name = _without_units(row["test_id"])
            peaks[name] = max(peaks.get(name, 0.0), row["peak_gpu_mb"])
    return peaks


def _read(folder: str | None) -> dict[str, float]:
    peaks: dict[str, float] = {}
    for path in sorted(Path(folder).rglob("*.jsonl")) if folder and os.path.isdir(folder) else ():
        peaks.update(_lines(path))
    return peaks


def _records(config) -> dict[str, float]:
    output = config.getoption("--gpu-mem-output", default=None)
    return _lines(Path(output)) if output and os.path.exists(output) else {}


def _memory():
    """The accelerator's module of memory figures, None when there is none."""
    # porter: ignore[PT101] it asks which device there is
    found = torch.accelerator.current_accelerator(check_available=True)
    module = None if found is None else getattr(torch, found.type, None)
    return module if hasattr(module, "max_memory_allocated") and hasattr(module, "reset_peak_memory_stats") else None


def _start() -> int:
    module = _memory()
    if module is None:
        return 0
    module.reset_peak_memory_stats()
    return int(module.memory_allocated())


def _peak() -> int:
    module = _memory()
    return 0 if module is None else int(module.max_memory_allocated())
