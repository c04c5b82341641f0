"""``pytest --pyargs porter.verify``: upstream's tests on the emitted backend, under the caller's own pytest flags.

A small pytest plugin, loaded through porter's ``pytest11`` entry point or ``-p porter.verify.entry``. It does nothing
unless the command line names this package. Then the outer pytest only builds the throw-away tree and hands the command
line, but for the place and porter's own options, to a pytest process that runs in that tree under
``porter.verify.plugin``. What to verify comes from ``--porter-options=FILE``, a JSON object with the fields of
``api.VerifyOptions``, and from the options below, which win over it.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

_OPTIONS = (
    ("options", "FILE", "JSON object with the fields of porter.verify.api.VerifyOptions"),
    ("upstream", "FOLDER", "unpacked deepinfer"),
    ("overlay", "FOLDER", "the emitted tree"),
    ("overrides", "FOLDER", "hand-written bodies to judge in place of an emitted tree"),
    ("masks", "FILE", "JSON file of write masks"),
    ("flavour", "npu|gpu", "which of is_npu and is_gpu the platform reports"),
    ("device", "DEVICE", "torch device under test, or sim for the simulated one"),
    ("args", "ARGUMENTS", "arguments that only the inner pytest knows, such as upstream's --seed"),
)
_FLAGS = (("full", "upstream's own sizes, under caps"),)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("porter", "porter verify (give values with =)")
    for name, metavar, text in _OPTIONS:
        group.addoption(f"--porter-{name}", metavar=metavar, default=None, help=text)
    for name, text in _FLAGS:
        group.addoption(f"--porter-{name}", action="store_true", default=None, help=text)


def read_options(config: pytest.Config) -> Any:
    """``VerifyOptions`` from the command line.

    Raises:
        UsageError: unreadable file, unknown field, or no upstream named.
    """
    from porter.verify.api import options_from, read_options_file

    file = config.getoption("--porter-options")
    data = {} if file is None else read_options_file(Path(file))
    for name in ("upstream", "overlay", "overrides", "masks", "flavour", "device", "full"):
        value = config.getoption(f"--porter-{name}")
        if value is not None:
            data[name] = value
    return options_from(data)


def inner_arguments(arguments: Sequence[str], here: Path) -> list[str] | None:
    """The caller's arguments for the inner pytest, None when they do not name this package.

    Taken out: the package (by module name or path), ``--pyargs``, and porter's own options.
    """
    valued = {f"--porter-{name}" for name, _, _ in _OPTIONS}
    flags = {f"--porter-{name}" for name, _ in _FLAGS}
    kept: list[str] = []
    asked = False
    rest = iter(arguments)
    for argument in rest:
        name, equals, _ = argument.partition("=")
        if argument == "porter.verify" or (not argument.startswith("-") and Path(argument).resolve() == here):
            asked = True
        elif name in valued:
            if not equals:
                next(rest, None)
        elif argument not in flags and argument != "--pyargs":
            kept.append(argument)
    return kept if asked else None


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    extra = inner_arguments(list(config.invocation_params.args), Path(__file__).resolve().parent)
    if extra is None or config.getoption("help", False):
        return None
    from porter.errors import PorterError
    from porter.verify.api import prepare, process_environment, pytest_command

    extra += shlex.split(config.getoption("--porter-args") or "")
    try:
        options = read_options(config)
        with prepare(options) as prepared:
            cache = config.rootpath / ".pytest_cache"
            command = pytest_command(prepared, ["-o", f"cache_dir={cache}", *options.pytest_args, *extra])
            environment = process_environment(prepared.session_path, options.threads, 1, prepared.target.environment)
            return subprocess.run(command, cwd=config.invocation_params.dir, env=environment, check=False).returncode
    except PorterError as error:
        print(f"{error.code}: {error.render()}", file=sys.stderr)
        if error.fix:
            print(f"fix: {error.fix}", file=sys.stderr)
        return error.exit_code
