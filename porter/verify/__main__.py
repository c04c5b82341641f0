"""``python -m porter.verify``: the same as ``api.run``, from a command line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from porter.errors import PorterError
from porter.verify.api import VerifyOptions, run
from porter.verify.report import render_text, write_report


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 clean, 1 findings, 2 usage, 3 internal."""
    parser = argparse.ArgumentParser(
        prog="python -m porter.verify", description="Run upstream's kernel tests on the backend."
    )
    parser.add_argument("--upstream", type=Path, required=True, help="unpacked deepinfer")
    parser.add_argument("--overlay", type=Path, help="the emitted tree")
    parser.add_argument("--overrides", type=Path, help="hand-written bodies to judge in place of an emitted tree")
    parser.add_argument("--masks", type=Path, help="JSON file of write masks")
    parser.add_argument("--exclude", action="append", default=[], metavar="FACTORY=REASON", help="left out on purpose")
    parser.add_argument("--flavour", choices=("npu", "gpu"), default="npu")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--full", action="store_true", help="upstream's own sizes, under caps")
    parser.add_argument("--memory", type=int, metavar="MIB", help="cap a case")
    parser.add_argument("--seconds", type=float, help="cap a case")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--select", action="append", metavar="FACTORY", help="judge this factory only")
    parser.add_argument("--file", action="append", metavar="STEM", help="run this interface module only")
    parser.add_argument("--catalogue", type=Path)
    parser.add_argument("--shrinks", type=Path)
    parser.add_argument("--workspace", type=Path, help="build the tree here and keep it")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--junit", type=Path)
    parser.add_argument("pytest_args", nargs="*", help="after --: passed on to pytest")
    given = parser.parse_args(arguments)
    options = VerifyOptions(
        upstream=given.upstream,
        overlay=given.overlay,
        overrides=given.overrides,
        masks=given.masks,
        excluded=dict(pair.partition("=")[::2] for pair in given.exclude),
        flavour=given.flavour,
        device=given.device,
        full=given.full,
        memory=given.memory << 20 if given.memory else None,
        seconds=given.seconds,
        jobs=given.jobs,
        threads=given.threads,
        select=tuple(given.select) if given.select else None,
        files=tuple(given.file) if given.file else None,
        catalogue=given.catalogue,
        shrinks=given.shrinks,
        workspace=given.workspace,
        pytest_args=tuple(given.pytest_args),
    )
    try:
        report = run(options)
    except PorterError as error:
        print(f"{error.code}: {error.render()}", file=sys.stderr)
        if error.fix:
            print(f"fix: {error.fix}", file=sys.stderr)
        return error.exit_code
    write_report(report, json_path=given.json, junit_path=given.junit)
    print(render_text(report))
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
