"""Cold analysis and warm check against griffe loading the same files, as ratios of one run.

    python benchmarks/analysis.py [--runs 3]

Each job runs in a process of its own, turn by turn, so that all of them see the same machine; the median of the runs is
compared. Prints a table and exits 1 when a promise is broken: cold analysis at most 10 x griffe's load, a warm check
faster than griffe's load and under half a second.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Every job prints the seconds that it took; imports of the job's own libraries count, Python's start does not.
COLD = """
import sys, time
start = time.perf_counter()
from pathlib import Path
from porter.config import load_config
from porter.sources.progress import QuietProgress
from porter.surface.read import read_surfaces
from porter.upstream import Request, resolve_sources
from porter.lock import read_lock
if __name__ == "__main__":
    config = load_config(Path(sys.argv[1]) / "porter.toml")
    resolved = resolve_sources(config, Request(offline=True), read_lock(config.lock_path), cache=Path(sys.argv[2]))
    start = time.perf_counter()
    for name, source in resolved.items():
        read_surfaces(name, source.root, progress=QuietProgress())
    print(time.perf_counter() - start)
"""
GRIFFE = """
import sys, time
from pathlib import Path
from griffe import GriffeLoader
start = time.perf_counter()
loader = GriffeLoader(search_paths=sys.argv[1:], allow_inspection=False)
for root in sys.argv[1:]:
    for package in ("deepinfer", "deep_ep", "deep_gemm", "deep_select", "flash_mla", "tile_kernels", "tilelang"):
        if (Path(root) / package).is_dir():
            loader.load(package, try_relative_path=False)
print(time.perf_counter() - start)
"""


def run(code: str, *arguments: str, cache: str) -> float:
    """Seconds that a job says it took."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "job.py"
        script.write_text(code)
        done = subprocess.run(
            [sys.executable, str(script), *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "PORTER_CACHE_DIR": cache},
        )
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.split()[-1])


def check(cache: str) -> float:
    """Seconds of one `porter check`, start of Python and all."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "porter", "check", "--project", str(ROOT)],
        capture_output=True,
        text=True,
        env={**os.environ, "PORTER_CACHE_DIR": cache},
    )
    if done.returncode not in (0, 1):
        raise SystemExit(done.stdout + done.stderr)
    return time.perf_counter() - start


def main() -> int:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs

    from porter.config import load_config
    from porter.lock import read_lock
    from porter.sources.cache import default_cache
    from porter.upstream import Request, resolve_sources

    config = load_config(ROOT / "porter.toml")
    roots = [str(source.root) for source in resolve_sources(config, Request(), read_lock(config.lock_path)).values()]
    archives = str(default_cache())
    cold, griffe, warm = [], [], []
    with tempfile.TemporaryDirectory() as warm_cache:
        check(warm_cache)
        for _ in range(runs):
            with tempfile.TemporaryDirectory() as empty:
                cold.append(run(COLD, str(ROOT), archives, cache=empty))
            griffe.append(run(GRIFFE, *roots, cache=warm_cache))
            warm.append(check(warm_cache))
    median = {name: statistics.median(values) for name, values in (("cold", cold), ("griffe", griffe), ("warm", warm))}
    print(f"griffe loads the pinned sources   {median['griffe']:7.2f} s")
    print(
        f"cold analysis of the same         {median['cold']:7.2f} s  {median['cold'] / median['griffe']:5.2f} x griffe (at most 10)"
    )
    print(
        f"warm `porter check`               {median['warm']:7.2f} s  {median['warm'] / median['griffe']:5.2f} x griffe (below 1, and below 0.5 s)"
    )
    kept = median["cold"] <= 10 * median["griffe"] and median["warm"] < median["griffe"] and median["warm"] < 0.5
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
