"""The pytest plugin under which upstream's tests run: ``-p porter.verify.plugin`` with a session in the environment.

Without a session it does nothing. With one it prepares the process before upstream's conftest is read (platform, device
map, references, recorders), leaves benchmarks out by their mark, caps every case, and turns what happened into a
verdict that pytest shows and the event file keeps.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from porter.errors import PorterError
from porter.verify.catalogue import Catalogue, load_catalogue
from porter.verify.errors import HarnessError
from porter.verify.events import CaseResult, EventWriter, FactoryCount, read_events
from porter.verify.judge import Judgement, Outcome, Verdict, judge, left_out_reason
from porter.verify.limits import Caps, CaseLimits, cap_exceeded, reset_peak, resident_peak
from porter.verify.report import build_report, render_text
from porter.verify.session import Session, session_from_environment
from porter.verify.workspace import BACKEND, OPS, VENDOR

_LEFT_OUT = "porter: "
_OPS_MODULE = OPS.replace("/", ".")
_KEY = pytest.StashKey["VerifyPlugin"]()
_CASE = pytest.StashKey["_Case"]()


class _Case:
    """State of one item between its hooks."""

    def __init__(self) -> None:
        self.judgement: Judgement | None = None
        self.line = 0
        self.seconds = 0.0
        self.cpu = 0.0
        self.peak = 0
        self.log: Any = None


def case_names(item: pytest.Item) -> tuple[str, str]:
    """``<file stem>::<function>`` and the parameter id of an item."""
    function = getattr(item, "originalname", None) or item.name
    callspec = getattr(item, "callspec", None)
    return f"{item.path.stem}::{function}", callspec.id if callspec is not None else ""


def _expect_not_implemented(factory: Callable[..., Any]) -> str:
    """ "" when calling a left-out factory says that it is not there, else what it did instead."""
    import inspect

    required = [
        parameter
        for parameter in inspect.signature(factory).parameters.values()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    ]
    args = [None for parameter in required if parameter.kind is not inspect.Parameter.KEYWORD_ONLY]
    kwargs = {parameter.name: None for parameter in required if parameter.kind is inspect.Parameter.KEYWORD_ONLY}
    try:
        factory(*args, **kwargs)
    except NotImplementedError:
        return ""
    except Exception as error:
        return f"raised {type(error).__name__}"
    return "returned a kernel"


class VerifyPlugin:
    """All hooks that need a session."""

    def __init__(self, session: Session, catalogue: Catalogue) -> None:
        from porter.verify.masks import read_masks
        from porter.verify.recorder import Recorder

        self.session = session
        self.catalogue = catalogue
        self.limits = CaseLimits(Caps(session.memory, session.seconds))
        self.recorder = Recorder(read_masks(session.masks), self.limits)
        self.exported: tuple[str, ...] = ()
        self.header: dict[str, Any] = {}
        self.device_map: Any = None
        self.watch: Any = None
        self._begin = time.monotonic()
        self._restore: Callable[[], None] = lambda: None
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self.writer = EventWriter(Path(session.results) / f"{os.getpid()}-{worker}.jsonl")

    # before anything of upstream is imported

    def prepare(self) -> None:
        """Make this process one in which upstream's modules can be imported and judged.

        Raises:
            HarnessError: something that the tests need is missing.
        """
        import torch

        from porter.verify import platform, references
        from porter.verify.device import DeviceMap

        session, root = self.session, Path(self.session.root)
        check_device(session.device)
        if session.simulated:
            from porter.verify.origins import Origins
            from porter.verify.watch import DeviceWatch

            origins = Origins(root, session.origins, Path(session.project))
            files = [None if path is None else Path(path) for path in (session.operators, session.rates)]
            self.watch = DeviceWatch((root / BACKEND, root / VENDOR), origins, *files)
            self.recorder.watch = self.watch.call
        sys.path[:0] = [str(root), *session.paths]
        os.environ["DEEPINFER_NEURON_DEVICE"] = session.device
        version = (
            references.install_references(session.flavour, root) if references.needs_references(root / OPS) else ""
        )
        if (root / VENDOR).is_dir():
            sys.path.append(str(root / VENDOR))
        if session.platform == "neuron":
            os.environ["DEEPINFER_ACCELERATOR"] = "neuron"
            platform.check_platform(session.flavour)
        else:
            self.device_map = DeviceMap(session.device)
            self.device_map.install()
            platform.install_platform(session.flavour)
        stand_in = platform.install_extension()
        hardware: Any = importlib.import_module("deep_cluster.hardware")
        if os.environ.get("PYTEST_XDIST_WORKER") and hasattr(hardware, "get_actual_num_gpus"):
            count = hardware.get_actual_num_gpus
            hardware.get_actual_num_gpus = lambda: max(1, count())
        try:
            testing: Any = importlib.import_module("deepinfer.testing")
        except ModuleNotFoundError:
            testing = None
        self._restore = self.recorder.wrap_comparisons(testing)
        self.header = {
            "torch": torch.__version__,
            "tile_kernels": version,
            "python": ".".join(str(part) for part in sys.version_info[:3]),
            "extension": "stand-in" if stand_in else "built",
            "platform": session.platform,
            **({"simulation": self.watch.describe()} if self.watch is not None else {}),
        }
        self.writer.write("start", **self.header)

    def load_backend(self) -> None:
        """Import the backend through upstream's dispatcher and wrap what it exports."""
        try:
            ops = importlib.import_module(f"{_OPS_MODULE}.ops")
        except Exception:
            text = traceback.format_exc(limit=-6)
            self.writer.write("problem", code="PV012", message=text, path="")
            raise
        for factory in self.session.excluded:
            found = vars(ops).get(factory)
            if found is not None:
                did = _expect_not_implemented(found)
                if did:
                    self.writer.write(
                        "problem", code="PV011", message=f"{factory}: {did}, expected NotImplementedError", path=""
                    )
        self.exported = self.recorder.wrap_dispatcher(ops)
        self.writer.write("exported", factories=self.exported)

    # pytest

    @pytest.hookimpl
    def pytest_report_header(self) -> list[str]:
        session = self.session
        caps = ", ".join(
            text
            for text in (
                f"{session.memory >> 20} MiB" if session.memory is not None else "",
                f"{session.seconds:g} s" if session.seconds is not None else "",
            )
            if text
        )
        return [
            f"porter verify: {session.flavour} on {session.device}, {'upstream' if session.full else 'shrunk'} sizes, "
            f"caps a case: {caps or 'none'}; {len(session.masks)} factories with write masks; left out: {len(session.excluded)}",
            "porter verify: "
            + ", ".join(f"{name} {value}" for name, value in self.header.items() if isinstance(value, str) and value),
        ]

    @pytest.hookimpl(tryfirst=True)
    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        ops = Path(self.session.root) / OPS
        if collection_path == ops or ops not in collection_path.parents:
            return None
        if collection_path.is_dir():
            return True
        if (
            self.session.files is not None
            and collection_path.suffix == ".py"
            and collection_path.stem not in self.session.files
        ):
            return True
        return None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        try:
            self.load_backend()
        except Exception as error:
            pytest.exit(f"the emitted backend cannot be imported: {type(error).__name__}: {error}", returncode=1)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.writer.write("problem", code="PV008", message=str(report.longrepr)[-2000:], path=report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        done = set(self.session.done)
        chosen: list[pytest.Item] = []
        dropped: list[pytest.Item] = []
        for item in items:
            (chosen if self._wanted(item, done) else dropped).append(item)
        items[:] = chosen
        if dropped:
            config.hook.pytest_deselected(items=dropped)
        for item in items:
            entry = self.catalogue.tests.get(case_names(item)[0])
            factories = entry.factories if entry is not None else ()
            if factories and all(factory in self.session.excluded for factory in factories):
                item.add_marker(
                    pytest.mark.skip(reason=_LEFT_OUT + left_out_reason(factories[0], self.session.excluded)),
                    append=False,
                )

    def _wanted(self, item: pytest.Item, done: set[str]) -> bool:
        if item.get_closest_marker("benchmark") is not None or item.nodeid in done:
            return False
        if self.session.select is None:
            return True
        entry = self.catalogue.tests.get(case_names(item)[0])
        return entry is not None and any(factory in self.session.select for factory in entry.all_factories)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        option = session.config.option
        given = ("keyword", "markexpr", "deselect", "lf", "maxfail", "collectonly", "key_filter")
        narrowed = any(getattr(option, name, None) for name in given)
        cases = [[item.nodeid, *case_names(item)] for item in session.items]
        self.writer.write("collected", cases=cases, partial=narrowed)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        state = item.stash[_CASE] = _Case()
        self.writer.write("begin", nodeid=item.nodeid)
        self._reset_default_device()
        entry = self.catalogue.tests.get(case_names(item)[0])
        state.log = self.recorder.start(entry.uncounted if entry is not None else ())
        try:
            return (yield)
        finally:
            self.recorder.stop()
            self._write(item, state)

    def _reset_default_device(self) -> None:
        """Some tests set a default device and leave it set."""
        import torch

        if self.device_map is not None:
            self.device_map.reset()
        else:
            torch.set_default_device(None)

    def _write(self, item: pytest.Item, state: _Case) -> None:
        test, case = case_names(item)
        judgement, log = state.judgement, state.log
        if judgement is None:  # interrupted: pytest never reported the case
            return
        if self.watch is not None:
            self.writer.write("simulated", nodeid=item.nodeid, factories=self.watch.take())
        uses = {
            name: FactoryCount(use.calls, use.seconds, tuple(sorted(use.unjudged))) for name, use in log.uses.items()
        }
        failed = judgement.verdict is Verdict.FAILED
        worst = log.worst if not failed or log.unequal is None else max(log.worst or 0.0, log.unequal)
        self.writer.case(
            CaseResult(
                nodeid=item.nodeid,
                test=test,
                case=case,
                verdict=judgement.verdict,
                code=judgement.code,
                reason=_with_difference(judgement, log.unequal),
                line=state.line,
                seconds=state.seconds,
                cpu=state.cpu,
                peak=state.peak,
                worst=worst,
                exact=log.exact,
                missing=tuple(log.missing),
                factories=uses,
            )
        )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        from porter.verify.probes import LocalProbes

        state = item.stash[_CASE]
        entry = self.catalogue.tests.get(case_names(item)[0])
        caps = self.limits.caps
        if entry is not None:
            seconds = entry.seconds * self.session.stretch if entry.seconds else caps.seconds
            self.limits.caps = Caps(entry.memory or caps.memory, seconds) if caps != Caps() else caps
        probes = LocalProbes(state.log.difference)
        module = getattr(item, "module", None)
        if entry is not None and entry.probes and module is not None:
            probes.start(module, entry.probes)
        reset_peak()
        held = resident_peak()
        start, cpu = time.perf_counter(), time.process_time()
        try:
            with self.limits.apply():
                return (yield)
        except BaseException as error:
            probes.raised(error.__traceback__)
            capped = cap_exceeded(error, self.limits.caps, max(0, resident_peak() - held))
            state.judgement = self._judge(item, state, "failed", str(error), capped)
            raise
        finally:
            state.seconds, state.cpu = time.perf_counter() - start, time.process_time() - cpu
            state.peak = max(0, resident_peak() - held)
            probes.stop()
            self.limits.caps = caps

    def _judge(self, item: pytest.Item, state: _Case, status: str, message: str, capped: str = "") -> Judgement:
        test, case = case_names(item)
        log, session = state.log, self.session
        outcome = Outcome(
            status=status,
            message=message,
            missing=tuple(log.missing),
            violations=tuple(log.violations),
            capped=capped,
            called=tuple(log.uses),
        )
        return judge(outcome, session.flavour, test, case, self.catalogue, session.excluded, session.full)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        state = item.stash.get(_CASE, None)
        if state is None:
            return report
        if report.skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            reason = reason.removeprefix("Skipped: ")
            if reason.startswith(_LEFT_OUT):
                state.judgement = Judgement(Verdict.LEFT_OUT, "", reason.removeprefix(_LEFT_OUT))
            else:
                state.judgement = self._judge(item, state, "skipped", reason)
        elif report.failed:
            previous = state.judgement
            if previous is None or previous.verdict in (Verdict.PASSED, Verdict.SKIPPED) or report.when != "call":
                state.judgement = self._judge(item, state, "failed", _last_line(report))
            elif previous.code == "PV001":
                state.judgement = Judgement(previous.verdict, previous.code, _last_line(report))
            state.line = _line_in_test(item, call)
        elif report.when == "call":
            state.judgement = self._judge(item, state, "passed", "")
        if report.when == "call" or not report.passed:
            _show(report, state.judgement)
        return report

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        self.writer.write("finish", status=int(exitstatus))
        if hasattr(session.config, "workerinput"):
            return
        report = build_report(read_events(Path(self.session.results)), self.session, self.catalogue)
        if report.exit_code and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        report = build_report(
            read_events(Path(self.session.results)), self.session, self.catalogue, time.monotonic() - self._begin
        )
        terminalreporter.section("porter verify")
        for line in render_text(report, failures=False).splitlines():
            terminalreporter.write_line(line)

    def pytest_unconfigure(self) -> None:
        self._restore()
        if self.device_map is not None:
            self.device_map.remove()
        self.writer.close()


def _with_difference(judgement: Judgement, unequal: float | None) -> str:
    if judgement.code == "PV001" and unequal is not None:
        return f"{judgement.reason}; tensors that should be equal differ by up to {unequal:.4g}"
    return judgement.reason


def _last_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message) if crash is not None else str(report.longrepr)
    lines = [line for line in text.splitlines() if line.strip()]
    return " ".join(lines[:2])[:400] if lines else "failed"


def _line_in_test(item: pytest.Item, call: pytest.CallInfo[None]) -> int:
    """Line in the test's own file where the error passed, 0 when it never did."""
    line = 0
    if call.excinfo is not None:
        for entry in call.excinfo.traceback:
            if Path(str(entry.path)) == item.path:
                line = entry.lineno + 1
    return line


def _show(report: pytest.TestReport, judgement: Judgement | None) -> None:
    """Make pytest show the verdict: a red skip fails, a case left out or over its cap is a skip, a red pass fails."""
    if judgement is None:
        return
    if judgement.verdict is Verdict.FAILED and not report.failed:
        report.outcome = "failed"
        report.longrepr = f"porter verify: {judgement.code}: {judgement.reason}"
    elif judgement.verdict in (Verdict.LEFT_OUT, Verdict.OVER) and not report.skipped:
        report.outcome = "skipped"
        report.longrepr = (str(report.location[0]), report.location[1] or 0, f"Skipped: {judgement.reason}")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Prepare the process before upstream's conftest is read."""
    try:
        session = session_from_environment()
        if session is None:
            return
        for name in session.preload:
            _preload(name)
        plugin = VerifyPlugin(session, load_catalogue(Path(session.catalogue) if session.catalogue else None))
        plugin.prepare()
    except PorterError as error:
        raise pytest.UsageError(_told(error)) from error
    early_config.stash[_KEY] = plugin
    early_config.pluginmanager.register(plugin, "porter-verify")


def check_device(name: str) -> None:
    """Raises: HarnessError, when torch has no such device here."""
    import torch

    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError, AttributeError, NotImplementedError) as error:
        first = str(error).partition("\n")[0]
        raise HarnessError(
            f"torch has no device {name!r} here: {first}", fix="--device cpu, or --device sim"
        ) from error


def _preload(name: str) -> None:
    try:
        importlib.import_module(name)
    except ImportError as error:
        raise HarnessError(f"{name}, to be imported first, cannot be: {error}") from error


def _told(error: PorterError) -> str:
    return error.render() + (f"\nfix: {error.fix}" if error.fix else "")
