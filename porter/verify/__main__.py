"""``python -m porter.verify``: the same as ``api.run``, from a command line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from porter.errors import PorterError
from porter.verify.api import options_from, read_options_file, run
from porter.verify.report import render_text, write_report


def main(arguments: list[str] | None = None) -> int:
    """Exit code: 0 clean, 1 findings, 2 usage, 3 internal."""
    parser = argparse.ArgumentParser(
        prog="python -m porter.verify", description="Run upstream's kernel tests on the backend."
    )
    parser.add_argument(
        "--options", type=Path, help="JSON object with the fields of VerifyOptions; options given here win"
    )
    for name, text in (
        ("upstream", "unpacked deepinfer"),
        ("overlay", "the emitted tree"),
        ("overrides", "hand-written bodies to judge in place of an emitted tree"),
        ("masks", "JSON file of write masks"),
        ("flavour", "npu or gpu"),
        ("device", "torch device under test, or sim for the simulated one"),
        ("operators", "file with the operators that have a device kernel, for the simulated device"),
        ("rates", "TOML or JSON file of rates, for the simulated device"),
        ("catalogue", "another catalogue than porter's"),
        ("shrinks", "another table of sizes than porter's"),
        ("workspace", "build the tree here and keep it"),
    ):
        parser.add_argument(f"--{name}", help=text)
    parser.add_argument("--full", action="store_true", default=None, help="upstream's own sizes, under caps")
    parser.add_argument("--memory", type=int, metavar="MIB", help="cap a case")
    parser.add_argument("--seconds", type=float, help="cap a case")
    parser.add_argument("--jobs", type=int, help="processes")
    parser.add_argument("--threads", type=int, help="torch threads a process")
    parser.add_argument("--exclude", action="append", metavar="FACTORY=REASON", help="left out on purpose")
    parser.add_argument("--select", action="append", metavar="FACTORY", help="judge this factory only")
    parser.add_argument("--file", action="append", dest="files", metavar="STEM", help="run this interface module only")
    parser.add_argument("--json", type=Path, help="write the report as JSON")
    parser.add_argument("--junit", type=Path, help="write the report as JUnit XML")
    parser.add_argument("pytest_args", nargs="*", help="after --: passed on to pytest")
    given = {name: value for name, value in vars(parser.parse_args(arguments)).items() if value not in (None, [])}
    json_path, junit_path = given.pop("json", None), given.pop("junit", None)
    if "exclude" in given:
        given["excluded"] = dict(pair.partition("=")[::2] for pair in given.pop("exclude"))
    if "memory" in given:
        given["memory"] <<= 20
    try:
        file = given.pop("options", None)
        report = run(options_from({**({} if file is None else read_options_file(file)), **given}))
    except PorterError as error:
        print(f"{error.code}: {error.render()}", file=sys.stderr)
        if error.fix:
            print(f"fix: {error.fix}", file=sys.stderr)
        return error.exit_code
    write_report(report, json_path=json_path, junit_path=junit_path)
    print(render_text(report))
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
