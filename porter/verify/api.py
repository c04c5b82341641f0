"""The one call from outside: ``run(options)`` builds the throw-away tree, runs upstream's tests in processes of their
own, and gives the report."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import FrameType
from typing import Any

import porter
from porter.errors import UsageError
from porter.verify.catalogue import FLAVOURS, Catalogue, load_catalogue
from porter.verify.errors import HarnessError, MaskError, WorkspaceError
from porter.verify.events import EventWriter, read_events
from porter.verify.report import VerifyReport, build_report
from porter.verify.session import SESSION_VARIABLE, Session
from porter.verify.shrink import load_shrinks
from porter.verify.targets import Target, target_of
from porter.verify.workspace import OPS, Workspace, make_workspace, override_origins, stage_overrides

SHRUNK_MEMORY, SHRUNK_SECONDS = 3 << 30, 60.0
FULL_MEMORY, FULL_SECONDS = 8 << 30, 120.0
_RESTARTS = 5
_SILENCE = 120.0
_STRETCH = 8.0


@dataclass(frozen=True)
class VerifyOptions:
    """What to verify, and how.

    ``upstream``: unpacked deepinfer. ``overlay``: the emitted tree; ``overrides``: hand-written bodies to judge in its
    place; neither when ``upstream`` is a checkout that holds the backend already. ``masks``: write masks in the form
    that ``masks.py`` documents, or a JSON file of them. ``excluded``: factory to the reason why it is left out.
    ``flavour``: ``npu`` or ``gpu``. ``device``: the torch device under test, or ``sim`` for porter's simulation of
    Neuron, whose strict findings and costs the report then holds; ``operators`` and ``rates`` are files in place of its
    own list of device operators and table of rates. ``origins``: path in ``overlay`` to the file it was emitted from,
    relative to ``project``; findings name that one. ``full``: upstream's own sizes.
    ``memory`` (bytes) and ``seconds``: caps a case, None for the defaults of the chosen sizes. ``jobs``: processes,
    sharing the files out. ``threads``: torch threads a process, None to share the processors out. ``select``: judge
    these factories only. ``files``: run these interface modules (stems) only. ``paths``: folders that hold the real
    tile-kernels and tilelang, where they are not installed. ``preload``: modules that a test process imports first, to
    register a device with torch. ``catalogue``, ``shrinks``: other data files than porter's.
    ``workspace``: build the tree here and keep it. ``pytest_args``: passed on.
    """

    upstream: Path
    overlay: Path | None = None
    overrides: Path | None = None
    masks: Mapping[str, Any] | Path | None = None
    excluded: Mapping[str, str] = field(default_factory=dict)
    flavour: str = "npu"
    device: str = "cpu"
    operators: Path | None = None
    rates: Path | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    project: Path | None = None
    full: bool = False
    memory: int | None = None
    seconds: float | None = None
    jobs: int = 1
    threads: int | None = None
    select: tuple[str, ...] | None = None
    files: tuple[str, ...] | None = None
    paths: tuple[Path, ...] = ()
    preload: tuple[str, ...] = ()
    catalogue: Path | None = None
    shrinks: Path | None = None
    workspace: Path | None = None
    pytest_args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prepared:
    """A tree, the session for its test processes, the catalogue they are held to, and how its device is had."""

    workspace: Workspace
    session: Session
    catalogue: Catalogue
    target: Target

    @property
    def session_path(self) -> Path:
        """Where the session is written for a single process."""
        return Path(self.session.results).parent / "session.json"


def _masks(value: Mapping[str, Any] | Path | None) -> Mapping[str, Any]:
    if value is None or isinstance(value, Mapping):
        return value or {}
    try:
        data = json.loads(value.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MaskError(f"cannot be read: {error}", path=str(value)) from error
    if not isinstance(data, dict):
        raise MaskError("expected an object of factories", path=str(value))
    return data


_PATHS = (
    "upstream", "overlay", "overrides", "masks", "catalogue", "shrinks", "workspace", "operators", "rates", "project",
)  # fmt: skip


def read_options_file(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``, for ``options_from``.

    Raises:
        UsageError: it cannot be read, or holds something else.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot be read: {error}", path=str(path)) from error
    if not isinstance(data, dict):
        raise UsageError("expected a JSON object with the fields of VerifyOptions", path=str(path))
    return data


def options_from(data: Mapping[str, Any]) -> VerifyOptions:
    """Options from plain data: paths as text, tuples as lists.

    Raises:
        UsageError: a field that does not exist, or no ``upstream``.
    """
    values = dict(data)
    unknown = sorted(set(values) - {item.name for item in fields(VerifyOptions)})
    if unknown:
        raise UsageError(f"unknown field {unknown[0]!r}", fix="the fields of porter.verify.api.VerifyOptions")
    if "upstream" not in values:
        raise UsageError("no upstream named", fix="name the root of an unpacked deepinfer")
    for name in _PATHS:
        if isinstance(values.get(name), str):
            values[name] = Path(values[name])
    values["paths"] = tuple(Path(path) for path in values.get("paths", ()))
    for name in ("select", "files", "preload", "pytest_args"):
        if values.get(name) is not None:
            values[name] = tuple(values[name])
    return VerifyOptions(**values)


def check_options(options: VerifyOptions) -> None:
    """Raises: UsageError for options that do not fit together."""
    if options.flavour not in FLAVOURS:
        raise UsageError(f"unknown flavour {options.flavour!r}", fix=f"one of {', '.join(FLAVOURS)}")
    if options.overlay is not None and options.overrides is not None:
        raise UsageError("an emitted tree and overrides are both given", fix="name one of them")
    if options.jobs < 1:
        raise UsageError(f"{options.jobs} jobs", fix="at least 1")
    if (options.memory is not None and options.memory <= 0) or (options.seconds is not None and options.seconds <= 0):
        raise UsageError("a cap must be above zero")
    for name in ("operators", "rates"):
        path = getattr(options, name)
        if path is not None and not target_of(options.device).simulated:
            raise UsageError(f"--{name} is the simulated device's", fix="--device sim")
        if path is not None and not path.is_file():
            raise UsageError("no such file", path=str(path))


@contextmanager
def _terminated_as_exit() -> Iterator[None]:
    """Let SIGTERM unwind the stack, so that test processes and the tree go too. Main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def prepare(options: VerifyOptions) -> Iterator[Prepared]:
    """The tree and the session; both are removed on leaving unless ``options.workspace`` names a place to keep.

    Raises:
        UsageError, WorkspaceError, ShrinkError, CatalogueError, MaskError: see the modules.
    """
    check_options(options)
    catalogue = load_catalogue(options.catalogue)
    shrinks = () if options.full else load_shrinks(options.shrinks)
    masks = _masks(options.masks)
    with ExitStack() as stack:
        stack.enter_context(_terminated_as_exit())
        if options.workspace is not None:
            base = options.workspace
        else:
            base = Path(tempfile.mkdtemp(prefix="porter-verify-"))
            stack.callback(shutil.rmtree, base, ignore_errors=True)
        base.mkdir(parents=True, exist_ok=True)
        if any(base.iterdir()):
            raise WorkspaceError(
                "the folder for the throw-away tree is not empty", path=str(base), fix="name a new folder"
            )
        overlay = (
            stage_overrides(options.overrides, base / "overlay") if options.overrides is not None else options.overlay
        )
        workspace = make_workspace(base / "tree", options.upstream, overlay, shrinks)
        table, project = options.origins, options.project or Path()
        if options.overrides is not None:
            table, project = override_origins(options.overrides), options.overrides.resolve().parent
        target = target_of(options.device)
        results = base / "results"
        results.mkdir()
        session = Session(
            root=str(workspace.root.resolve()),
            results=str(results.resolve()),
            platform=workspace.platform,
            flavour=options.flavour,
            device=target.device,
            excluded=dict(options.excluded),
            masks=masks,
            files=options.files,
            select=options.select,
            memory=options.memory or (FULL_MEMORY if options.full else SHRUNK_MEMORY),
            seconds=options.seconds or (FULL_SECONDS if options.full else SHRUNK_SECONDS) * target.stretch,
            full=options.full,
            paths=tuple(str(path.resolve()) for path in options.paths),
            preload=(*target.preload, *options.preload),
            simulated=target.simulated,
            operators=None if options.operators is None else str(options.operators.resolve()),
            rates=None if options.rates is None else str(options.rates.resolve()),
            stretch=target.stretch,
            origins=dict(table),
            project=str(project.resolve()),
            catalogue=str(options.catalogue.resolve()) if options.catalogue is not None else None,
        )
        prepared = Prepared(workspace, session, catalogue, target)
        session.write(prepared.session_path)
        yield prepared


def share_out(stems: Sequence[str], weights: Mapping[str, float], jobs: int) -> tuple[tuple[str, ...], ...]:
    """Split ``stems`` into at most ``jobs`` groups of about equal weight, heaviest first; each non-empty."""
    groups: list[list[str]] = [[] for _ in range(min(jobs, len(stems)))]
    loads = [0.0] * len(groups)
    for stem in sorted(stems, key=lambda stem: (-weights.get(stem, 1.0), stem)):
        lightest = loads.index(min(loads))
        groups[lightest].append(stem)
        loads[lightest] += weights.get(stem, 1.0)
    return tuple(tuple(group) for group in groups if group)


def stems_with_tests(workspace: Workspace, files: tuple[str, ...] | None) -> tuple[str, ...]:
    """Interface modules that hold tests."""
    stems = tuple(
        path.stem
        for path in sorted(workspace.ops.glob("*.py"))
        if path.name not in ("__init__.py", "conftest.py") and "def test_" in path.read_text(encoding="utf-8")
    )
    unknown = sorted(set(files or ()) - set(stems))
    if unknown:
        raise UsageError(f"no tests in an interface module {unknown[0]!r}", fix=f"one of {', '.join(stems)}")
    return stems if files is None else tuple(stem for stem in stems if stem in files)


def pytest_command(prepared: Prepared, extra: Sequence[str]) -> list[str]:
    """Command line of a test process."""
    root = prepared.workspace.root.resolve()
    return [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "porter.verify.plugin",
        "--rootdir",
        str(root),
        "-c",
        str(root / "pyproject.toml"),
        *extra,
        str(root / OPS),
    ]


def process_environment(
    session_path: Path, threads: int | None, jobs: int, extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Environment of a test process; ``extra``: what its device wants."""
    environment = {**os.environ, **(extra or {})}
    environment[SESSION_VARIABLE] = str(session_path)
    home = str(Path(porter.__file__).resolve().parent.parent)
    environment["PYTHONPATH"] = os.pathsep.join(part for part in (home, environment.get("PYTHONPATH", "")) if part)
    environment["OMP_NUM_THREADS"] = str(threads or max(1, (os.cpu_count() or 1) // jobs))
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    return environment


class _Process:
    """One test process over some files; restarted, without the case it died in, when it dies."""

    def __init__(self, prepared: Prepared, options: VerifyOptions, number: int, files: tuple[str, ...]) -> None:
        self.prepared, self.options, self.number = prepared, options, number
        self.folder = Path(prepared.session.results) / f"process-{number}"
        self.folder.mkdir()
        self.session = replace(prepared.session, files=files, results=str(self.folder))
        self.log = self.folder / "output.txt"
        self.starts = 0
        self.handle: subprocess.Popen[bytes] | None = None
        self.last_sign = 0.0
        self.status: int | None = None

    def start(self) -> None:
        """Start, or start again with what is left."""
        events = read_events(self.folder)
        self.session = replace(self.session, done=(*events.cases, *events.open))
        path = self.folder / "session.json"
        self.session.write(path)
        extra = [
            "-q",
            "--no-header",
            "--tb=short",
            "-p",
            "no:cacheprovider",
            "--continue-on-collection-errors",
            *self.options.pytest_args,
        ]
        extra_variables = self.prepared.target.environment
        environment = process_environment(path, self.options.threads, self.options.jobs, extra_variables)
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        with self.log.open("ab") as output:
            self.handle = subprocess.Popen(
                pytest_command(self.prepared, extra),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.prepared.workspace.root,
                env=environment,
            )
        self.starts += 1
        self.last_sign = time.monotonic()

    def _size(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("*.jsonl"))

    def poll(self, size: int) -> tuple[bool, int]:
        """(still working, size of what it wrote). Restarts a process that died, stops one that hangs."""
        assert self.handle is not None
        now = self._size()
        if now != size:
            self.last_sign = time.monotonic()
        status = self.handle.poll()
        quiet = time.monotonic() - self.last_sign
        if status is None and quiet > _SILENCE and quiet > self._patience():
            self.handle.kill()
            status = self.handle.wait()
        if status is None:
            return True, now
        events = read_events(self.folder)
        if status < 0 and events.open and self.starts <= _RESTARTS:
            writer = EventWriter(self.folder / f"died-{self.starts}.jsonl")
            writer.write("problem", code="PV007", message=f"signal {-status} in {events.open[-1]}", path="")
            writer.close()
            self.start()
            return True, now
        self.status = status
        return False, now

    def _patience(self) -> float:
        """Seconds that the open case may stay silent: its cap counts processor time, which a busy machine stretches."""
        seconds = self.session.seconds or 0.0
        for nodeid in read_events(self.folder).open:
            entry = self.prepared.catalogue.tests.get(test_of(nodeid))
            own = (entry.seconds if entry is not None else None) or 0.0
            seconds = max(seconds, own * self.session.stretch)
        return seconds * _STRETCH + _SILENCE

    def tail(self) -> str:
        """The end of what the process printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-4000:]


def test_of(nodeid: str) -> str:
    """``<file stem>::<function>`` of pytest's node id.

    >>> test_of("a/b/norm.py::test_norm[8-1]")
    'norm::test_norm'
    """
    path, _, rest = nodeid.partition("::")
    return f"{Path(path).stem}::{rest.rpartition('::')[2].partition('[')[0]}"


def run(options: VerifyOptions, progress: Callable[[int, int], None] | None = None) -> VerifyReport:
    """Verify and report.

    Args:
        options: see ``VerifyOptions``.
        progress: called now and then with (cases finished, cases collected so far).

    Raises:
        UsageError, WorkspaceError, MaskError: options or inputs that do not fit (exit code 2).
        ShrinkError, CatalogueError, HarnessError: upstream is not what porter's data says, or the test processes did
            not do their work (exit code 3).
    """
    begin = time.monotonic()
    with prepare(options) as prepared:
        groups = share_out(
            stems_with_tests(prepared.workspace, options.files), prepared.catalogue.weights, options.jobs
        )
        if not groups:
            raise HarnessError("no interface module holds a test", path=OPS)
        processes = [_Process(prepared, options, number, files) for number, files in enumerate(groups)]
        try:
            for process in processes:
                process.start()
            sizes = [0] * len(processes)
            working = [True] * len(processes)
            told = time.monotonic()
            while any(working):
                time.sleep(0.2)
                for index, process in enumerate(processes):
                    if working[index]:
                        working[index], sizes[index] = process.poll(sizes[index])
                if progress is not None and time.monotonic() - told > 2:
                    told = time.monotonic()
                    merged = [read_events(process.folder) for process in processes]
                    progress(
                        sum(len(events.cases) for events in merged), sum(len(events.collected) for events in merged)
                    )
        finally:
            for process in processes:
                if process.handle is not None and process.handle.poll() is None:
                    process.handle.kill()
                    process.handle.wait()
        _gather(processes, Path(prepared.session.results))
        events = read_events(Path(prepared.session.results))
        unimportable = any(code == "PV012" for code, _, _ in events.problems)
        for process in processes:
            if process.status == 4:
                raise HarnessError(f"the test process refused its command line or environment:\n{process.tail()}")
            if process.status not in (0, 1, 5) and not events.open and not unimportable:
                raise HarnessError(f"the test process ended with status {process.status}:\n{process.tail()}")
        report = build_report(events, prepared.session, prepared.catalogue, time.monotonic() - begin)
        return replace(report, log="\n".join(process.tail() for process in processes))


def _gather(processes: Sequence[_Process], results: Path) -> None:
    for process in processes:
        for path in sorted(process.folder.glob("*.jsonl")):
            shutil.copyfile(path, results / f"{process.number}-{path.name}")
