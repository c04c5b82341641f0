"""Verification from end to end on a tiny upstream: each rule has a case that breaks it and one that keeps it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from fake_upstream import COPY_BACKEND, make_overlay, make_upstream

from porter.verify.api import VerifyOptions, run
from porter.verify.errors import HarnessError
from porter.verify.judge import Verdict
from porter.verify.report import VerifyReport, render_text, report_json, write_report

MODULES = {
    "plain": """
        def call(x):
            out = torch.empty_like(x)
            ops.copy_tl(x.shape[1])(x, out)
            return out

        @pytest.mark.parametrize("rows", [1, 64])
        def test_plain(rows):
            x = torch.randn(rows, 4, device="cuda")
            assert torch.equal(call(x), x)

        @pytest.mark.benchmark
        def test_plain_bench():
            raise AssertionError("benchmarks are left out")
    """,
    "wrong": """
        def test_wrong():
            x = torch.arange(4.0)
            out = torch.empty_like(x)
            ops.off_by_two_tl()(x, out)
            assert torch.equal(out, x)
    """,
    "absent": """
        def test_absent():
            ops.absent_tl(4)

        def test_absent_swallowed():
            with pytest.raises(AttributeError):
                ops.absent_tl(4)
    """,
    "stub": """
        def test_stub():
            ops.pending_tl(4)(torch.ones(4))

        def test_stub_swallowed():
            with pytest.raises(NotImplementedError):
                ops.pending_tl(4)

        def test_left_out():
            ops.excluded_tl(4)(torch.ones(4))

        @pytest.mark.parametrize("excluded", [False, True])
        def test_mixed(excluded):
            x = torch.ones(2, 2)
            ops.copy_tl(2)(x, torch.empty_like(x))
            if excluded:
                ops.excluded_tl(4)
    """,
    "writes": """
        def test_greedy():
            ops.greedy_tl()(torch.zeros(8), torch.zeros(8))

        def test_greedy_swallowed():
            with pytest.raises(AssertionError):
                ops.greedy_tl()(torch.zeros(8), torch.zeros(8))

        def test_spill():
            backing = torch.zeros(4, 8)
            ops.spill_tl()(torch.ones(4), backing[:, 2])

        def test_tidy():
            backing = torch.zeros(4, 8, dtype=torch.bfloat16)
            ops.tidy_tl()(backing[:, 0], backing[:, 2])
            assert backing[:, 2].sum() == 4 and backing.sum() == 4

        def test_other_arguments():
            ops.renamed_tl()(torch.ones(4), torch.ones(4))
    """,
    "skips": """
        @pytest.mark.parametrize("rows", [1, 2, 3])
        def test_known(rows):
            if rows > 1:
                pytest.skip("upstream cannot")

        def test_unknown():
            pytest.skip("says who")

        def test_miscounted():
            pytest.skip("more were announced")
    """,
    "errors": """
        def test_tolerance():
            x = torch.zeros(4)
            out = torch.empty(4)
            ops.off_by_little_tl()(x, out)
            assert torch.allclose(out, x, atol=1e-2)
            assert_close(out, x, "out", eps=1e-2)

        def test_probe():
            x = torch.zeros(4)
            out = torch.empty(4)
            ops.off_by_little_tl()(x, out)
            max_diff = (out - x).abs().max().item()
            assert max_diff < 1e-2
    """,
    "stray": """
        def test_stray():
            x = torch.ones(2, 2)
            ops.copy_tl(2)(x, torch.empty_like(x))

        def test_uncatalogued():
            pass
    """,
    "devices": """
        def helper(generator: torch.Generator | None = None):
            return torch.rand(3, generator=generator, device="cuda")

        def test_device_map():
            torch.set_default_device("cuda")
            assert torch.ones(2).device.type == "cpu"
            assert torch.empty(2, device=torch.device("cuda", 0)).device.type == "cpu"
            assert torch.ones(2).cuda().device.type == "cpu" and torch.ones(2).to("cuda").device.type == "cpu"
            with torch.device("cuda"):
                assert torch.ones(2).device.type == "cpu"
            generator = torch.Generator(device="cuda").manual_seed(3)
            assert isinstance(generator, torch.Generator)
            first = helper(generator)
            assert torch.equal(first, helper(generator.manual_seed(3)))
            torch.cuda.synchronize()
            assert PLATFORM.is_npu and not PLATFORM.is_gpu and PLATFORM.fp8_sf_type == torch.int16

        def test_default_device_was_reset():
            assert not [mode for mode in torch.overrides._get_current_function_mode_stack() if "DeviceContext" in type(mode).__name__]

        def test_kernels_run_without_the_map():
            with pytest.raises((AssertionError, RuntimeError)):
                ops.names_cuda_tl()(torch.ones(2))
    """,
}

BACKEND = {
    "plain": COPY_BACKEND,
    "more": """
        import torch

        def off_by_two_tl():
            def kernel(x, out):
                out.copy_(x + 2)
            return kernel

        def off_by_little_tl():
            def kernel(x, out):
                out.copy_(x + 0.001)
            return kernel

        def pending_tl(width):
            raise NotImplementedError("pending_tl: not supported")

        def excluded_tl(width, *, mode=0):
            raise NotImplementedError("excluded_tl: not supported")

        def pretended_tl(width):
            return lambda x: None

        def greedy_tl():
            def kernel(x, out):
                out.copy_(x)
                x[3] = 1
            return kernel

        def spill_tl():
            def kernel(x, out):
                out.copy_(x)
                torch.as_strided(out, (1,), (1,), 0).fill_(1)
            return kernel

        def tidy_tl():
            def kernel(x, out):
                out.fill_(1)
            return kernel

        def renamed_tl():
            def kernel(first, second):
                pass
            return kernel

        def names_cuda_tl():
            def kernel(x):
                torch.ones(2, device="cuda:99")
            return kernel
    """,
}

MASKS = {
    "copy_tl": {"x": False, "out": True},
    "greedy_tl": {"x": False, "out": True},
    "spill_tl": {"x": False, "out": True},
    "tidy_tl": [{"x": False, "y": True}, {"x": False, "out": True}],
    "renamed_tl": {"x": False, "out": True},
    "off_by_two_tl": {"x": False, "out": None},
}

CATALOGUE = """
    test = [
      { name = "plain::test_plain", factories = ["copy_tl"] },
      { name = "wrong::test_wrong", factories = ["off_by_two_tl"] },
      { name = "absent::test_absent", factories = ["absent_tl"] },
      { name = "absent::test_absent_swallowed", factories = ["absent_tl"] },
      { name = "stub::test_stub", factories = ["pending_tl"] },
      { name = "stub::test_stub_swallowed", factories = ["pending_tl"] },
      { name = "stub::test_left_out", factories = ["excluded_tl"] },
      { name = "stub::test_mixed", factories = ["copy_tl"], sometimes = ["excluded_tl"] },
      { name = "writes::test_greedy", factories = ["greedy_tl"] },
      { name = "writes::test_greedy_swallowed", factories = ["greedy_tl"] },
      { name = "writes::test_spill", factories = ["spill_tl"] },
      { name = "writes::test_tidy", factories = ["tidy_tl"] },
      { name = "writes::test_other_arguments", factories = ["renamed_tl"] },
      { name = "skips::test_known", factories = [] },
      { name = "skips::test_unknown", factories = [] },
      { name = "skips::test_miscounted", factories = [] },
      { name = "errors::test_tolerance", factories = ["off_by_little_tl"] },
      { name = "errors::test_probe", factories = ["off_by_little_tl"], probes = [{ function = "test_probe", variable = "max_diff" }] },
      { name = "stray::test_stray", factories = ["tidy_tl"] },
      { name = "devices::test_device_map", factories = [] },
      { name = "devices::test_default_device_was_reset", factories = [] },
      { name = "devices::test_kernels_run_without_the_map", factories = ["names_cuda_tl"] },
      { name = "gone::test_gone", factories = ["copy_tl"] },
    ]
    [[skip]]
    flavour = "npu"
    test = "skips::test_known"
    case = "[23]"
    cases = 2
    reason = "upstream's own"
    [[skip]]
    flavour = "npu"
    test = "skips::test_miscounted"
    case = ""
    cases = 2
    reason = "upstream's own"
"""


def write_catalogue(folder: Path, text: str) -> Path:
    path = folder / "catalogue.toml"
    path.write_text(text, encoding="utf-8")
    return path


def nothing_to_shrink(folder: Path) -> Path:
    path = folder / "shrink.toml"
    path.write_text("", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> VerifyReport:
    folder = tmp_path_factory.mktemp("rules")
    return run(
        VerifyOptions(
            upstream=make_upstream(folder / "upstream", MODULES),
            overlay=make_overlay(folder / "overlay", BACKEND),
            masks=MASKS,
            excluded={"excluded_tl": "feature x is off", "pretended_tl": "feature y is off"},
            catalogue=write_catalogue(folder, CATALOGUE),
            shrinks=nothing_to_shrink(folder),
            threads=1,
        )
    )


@pytest.mark.parametrize(
    ("test", "verdict", "code"),
    [
        ("plain::test_plain", Verdict.PASSED, ""),
        ("wrong::test_wrong", Verdict.FAILED, "PV001"),
        ("absent::test_absent", Verdict.FAILED, "PV002"),
        ("absent::test_absent_swallowed", Verdict.FAILED, "PV002"),
        ("stub::test_stub", Verdict.FAILED, "PV002"),
        ("stub::test_stub_swallowed", Verdict.FAILED, "PV002"),
        ("stub::test_left_out", Verdict.LEFT_OUT, ""),
        ("writes::test_greedy", Verdict.FAILED, "PV003"),
        ("writes::test_greedy_swallowed", Verdict.FAILED, "PV003"),
        ("writes::test_spill", Verdict.FAILED, "PV003"),
        ("writes::test_tidy", Verdict.PASSED, ""),
        ("writes::test_other_arguments", Verdict.FAILED, "PV003"),
        ("skips::test_unknown", Verdict.FAILED, "PV004"),
        ("skips::test_miscounted", Verdict.SKIPPED, ""),
        ("errors::test_tolerance", Verdict.PASSED, ""),
        ("errors::test_probe", Verdict.PASSED, ""),
        ("stray::test_stray", Verdict.FAILED, "PV010"),
        ("stray::test_uncatalogued", Verdict.FAILED, "PV010"),
        ("devices::test_device_map", Verdict.PASSED, ""),
        ("devices::test_default_device_was_reset", Verdict.PASSED, ""),
        ("devices::test_kernels_run_without_the_map", Verdict.PASSED, ""),
    ],
)
def test_verdict(report: VerifyReport, test: str, verdict: Verdict, code: str) -> None:
    cases = [case for case in report.cases if case.test == test]
    assert cases, f"{test} did not run"
    assert {(case.verdict, case.code) for case in cases} == {(verdict, code)}, [case.reason for case in cases]


def test_a_case_is_left_out_by_what_it_calls(report: VerifyReport) -> None:
    assert {case.case: case.verdict for case in report.cases if case.test == "stub::test_mixed"} == {
        "False": Verdict.PASSED,
        "True": Verdict.LEFT_OUT,
    }


def test_known_skips_are_named_one_by_one(report: VerifyReport) -> None:
    cases = {case.case: (case.verdict, case.reason) for case in report.cases if case.test == "skips::test_known"}
    assert cases == {
        "1": (Verdict.PASSED, ""),
        "2": (Verdict.SKIPPED, "upstream's own"),
        "3": (Verdict.SKIPPED, "upstream's own"),
    }


def test_benchmarks_are_deselected(report: VerifyReport) -> None:
    assert not any("bench" in case.nodeid for case in report.cases)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("PV002", "absent_tl is neither in the backend nor left out"),
        ("PV003", "greedy_tl: read-only argument x was written: "),
        ("PV003", "spill_tl: memory outside out was written: "),
        ("PV003", "renamed_tl: kernel called as ('first', 'second'), its contract has (x, out)"),
        ("PV005", "skips::test_miscounted"),
        ("PV010", "the catalogue names gone::test_gone, which did not run"),
        ("PV014", "off_by_little_tl: its kernels ran without write masks"),
        ("PV011", "pretended_tl: returned a kernel, expected NotImplementedError"),
    ],
)
def test_finding(report: VerifyReport, code: str, text: str) -> None:
    assert any(finding.code == code and text in finding.message for finding in report.findings), [
        (finding.code, finding.message) for finding in report.findings
    ]


def test_every_finding_is_expected(report: VerifyReport) -> None:
    stems = {"wrong", "absent", "stub", "writes", "skips", "stray"}
    for finding in report.findings:
        assert not finding.path or Path(finding.path).stem in stems | {"gone"}, finding


def test_rows(report: VerifyReport) -> None:
    rows = {row.factory: row for row in report.rows}
    copy = rows["copy_tl"]
    assert (copy.status, copy.passed, copy.failed, copy.left_out, copy.calls) == ("implemented", 3, 1, 0, 5)
    assert copy.error == "exact" and copy.masked and not copy.unjudged
    assert rows["absent_tl"].status == "missing" and rows["absent_tl"].failed == 2
    assert rows["excluded_tl"].status == "left out" and rows["excluded_tl"].left_out == 2
    assert rows["off_by_two_tl"].error == "2.0e+00" and rows["off_by_two_tl"].unjudged == ("out",)
    assert rows["off_by_little_tl"].worst == pytest.approx(0.001, rel=1e-4)
    assert rows["(no kernel)"].passed == 3


def test_failure_names_the_line(report: VerifyReport) -> None:
    (wrong,) = [case for case in report.cases if case.test == "wrong::test_wrong"]
    lines = (MODULES["wrong"]).splitlines()
    assert wrong.line > len(lines) and "differ by up to 2" in wrong.reason


def test_text(report: VerifyReport) -> None:
    text = render_text(report)
    assert "stub::test_left_out, 1 case: left out: excluded_tl (feature x is off)" in text
    assert "skips::test_known, 2 cases: upstream's own" in text
    assert text.splitlines()[0].split()[:3] == ["factory", "passed", "failed"]


def test_json_and_junit(report: VerifyReport, tmp_path: Path) -> None:
    write_report(report, json_path=tmp_path / "r.json", junit_path=tmp_path / "r.xml")
    data = json.loads((tmp_path / "r.json").read_text())
    assert data == json.loads(json.dumps(report_json(report)))
    assert data["version"] == 1 and data["exit_code"] == 1
    assert sum(data["counts"].values()) == len(data["cases"]) == len(report.cases)
    assert {"factory", "status", "passed", "failed", "left_out", "worst", "calls", "seconds", "error"} <= set(
        data["factories"][0]
    )
    root = ElementTree.parse(tmp_path / "r.xml").getroot()
    suites = {suite.get("name"): suite for suite in root}
    assert root.tag == "testsuites" and set(suites) >= {"plain", "wrong", "findings"}
    cases = [case for name, suite in suites.items() if name != "findings" for case in suite]
    assert len(cases) == len(report.cases)
    assert sum(case.find("failure") is not None for case in cases) == report.count(Verdict.FAILED)
    not_run = (Verdict.SKIPPED, Verdict.LEFT_OUT, Verdict.OVER)
    assert sum(case.find("skipped") is not None for case in cases) == sum(report.count(verdict) for verdict in not_run)
    for suite in suites.values():
        assert int(suite.get("failures", "0")) == sum(case.find("failure") is not None for case in suite)


def test_exit_code_with_findings(report: VerifyReport) -> None:
    assert report.exit_code == 1


CAPPED = {
    "sizes": """
        ROWS = 1 << 29

        def test_memory():
            x = torch.ones(ROWS)
            ops.copy_tl(1)(x, torch.empty_like(x))

        def test_small():
            x = torch.ones(4)
            ops.copy_tl(1)(x, torch.empty_like(x))

        def test_time():
            while True:
                pass
    """,
    "dies": """
        import os

        def test_before():
            ops.copy_tl(1)(torch.ones(1), torch.ones(1))

        def test_dies():
            ops.copy_tl(1)(torch.ones(1), torch.ones(1))
            os.kill(os.getpid(), 11)

        def test_after():
            ops.copy_tl(1)(torch.ones(1), torch.ones(1))
    """,
}
CAPPED_CATALOGUE = (
    "test = ["
    + ", ".join(
        f'{{ name = "{name}", factories = ["copy_tl"] }}'
        for name in (
            "sizes::test_memory",
            "sizes::test_small",
            "sizes::test_time",
            "dies::test_before",
            "dies::test_dies",
            "dies::test_after",
        )
    )
    + "]"
)


def capped(folder: Path, modules: dict[str, str], *, full: bool, jobs: int) -> VerifyReport:
    shrinks = folder / "shrink.toml"
    shrinks.write_text('[[shrink]]\nfile = "sizes.py"\nscope = "ROWS"\nold = 29\nnew = 28\n')
    return run(
        VerifyOptions(
            upstream=make_upstream(folder / "upstream", modules),
            overlay=make_overlay(folder / "overlay", {"plain": COPY_BACKEND}),
            masks={"copy_tl": {"x": False, "out": True}},
            catalogue=write_catalogue(folder, CAPPED_CATALOGUE),
            shrinks=shrinks,
            files=tuple(modules),
            memory=512 << 20,
            seconds=1.0,
            full=full,
            threads=1,
            jobs=jobs,
        )
    )


def test_shrunk_sizes_must_fit_and_a_dead_process_is_a_finding(tmp_path: Path) -> None:
    report = capped(tmp_path, CAPPED, full=False, jobs=2)
    assert {case.test: (case.verdict, case.code) for case in report.cases} == {
        "sizes::test_memory": (Verdict.FAILED, "PV006"),
        "sizes::test_small": (Verdict.PASSED, ""),
        "sizes::test_time": (Verdict.FAILED, "PV006"),
        "dies::test_before": (Verdict.PASSED, ""),
        "dies::test_after": (Verdict.PASSED, ""),
    }
    reasons = {case.test: case.reason for case in report.cases}
    assert reasons["sizes::test_memory"] == "needs 1,024 MiB in one tensor, over 512 MiB in all"
    assert re.fullmatch(r"over 1 s of processor time, with [\d,]+ MiB", reasons["sizes::test_time"])
    died = [finding.message for finding in report.findings if finding.code == "PV007"]
    assert len(died) == 1 and "signal 11" in died[0] and "test_dies" in died[0]
    assert {finding.code for finding in report.findings} == {"PV006", "PV007"}


def test_full_sizes_over_the_caps_are_listed(tmp_path: Path) -> None:
    report = capped(tmp_path, {"sizes": CAPPED["sizes"]}, full=True, jobs=1)
    assert {case.test: (case.verdict, case.reason.partition(",")[0]) for case in report.cases} == {
        "sizes::test_memory": (Verdict.OVER, "needs 2"),
        "sizes::test_small": (Verdict.PASSED, ""),
        "sizes::test_time": (Verdict.OVER, "over 1 s of processor time"),
    }
    assert report.exit_code == 0
    assert "sizes::test_memory[]: needs 2,048 MiB" in render_text(report)


CLEAN_CATALOGUE = 'test = [{ name = "plain::test_plain", factories = ["copy_tl"] }]'


@pytest.fixture
def clean(tmp_path: Path) -> Callable[..., VerifyOptions]:
    def options(**changes: object) -> VerifyOptions:
        values: dict[str, object] = {
            "upstream": make_upstream(tmp_path / "upstream", {"plain": MODULES["plain"]}),
            "overlay": make_overlay(tmp_path / "overlay", {"plain": COPY_BACKEND}),
            "masks": {"copy_tl": {"x": False, "out": True}},
            "catalogue": write_catalogue(tmp_path, CLEAN_CATALOGUE),
            "shrinks": nothing_to_shrink(tmp_path),
            "threads": 1,
        }
        return VerifyOptions(**{**values, **changes})  # type: ignore[arg-type]

    return options


def test_clean_run_and_its_files(clean: Callable[..., VerifyOptions], tmp_path: Path) -> None:
    options = clean(workspace=tmp_path / "kept")
    report = run(options)
    assert report.exit_code == 0 and not report.findings
    assert report.count(Verdict.PASSED) == 2 and len(report.cases) == 2
    assert (tmp_path / "kept" / "tree" / "deepinfer").is_dir()
    assert not list((tmp_path / "upstream").rglob("__pycache__"))


def test_backend_that_does_not_import(clean: Callable[..., VerifyOptions], tmp_path: Path) -> None:
    report = run(clean(overlay=make_overlay(tmp_path / "bad", {"plain": "import no_such_module\n"})))
    assert report.exit_code == 1
    assert {finding.code for finding in report.findings} == {"PV012"}
    assert "no_such_module" in report.findings[0].message


def test_tree_with_its_own_platform(clean: Callable[..., VerifyOptions], tmp_path: Path) -> None:
    platform = """

class PlatformNeuron(Platform):
    enum = PlatformEnum.NPU
    tilelang_ops_backend = "neuron"

def get_platform():
    import os
    assert os.environ["DEEPINFER_ACCELERATOR"] == "neuron" and os.environ["DEEPINFER_NEURON_DEVICE"] == "cpu"
    return PlatformNeuron()
"""
    modules = {"plain": """
            def test_plain():
                assert type(PLATFORM).__name__ == "PlatformNeuron"
                torch.set_default_device("meta")
                x = torch.ones(2, 2, device="cpu")
                ops.copy_tl(2)(x, torch.empty_like(x))
        """}
    upstream = make_upstream(tmp_path / "own", modules)
    chooser = upstream / "deepinfer" / "platform.py"
    chooser.write_text(chooser.read_text() + platform)
    report = run(clean(upstream=upstream))
    assert report.header["platform"] == "neuron" and report.count(Verdict.PASSED) == 1 and not report.findings


def test_process_that_cannot_start(clean: Callable[..., VerifyOptions]) -> None:
    with pytest.raises(HarnessError, match="no_such_device, to be imported first") as caught:
        run(clean(preload=("no_such_device",)))
    assert caught.value.exit_code == 3


def test_pytest_entry(clean: Callable[..., VerifyOptions], tmp_path: Path) -> None:
    options = clean()
    file = tmp_path / "options.json"
    names = ("upstream", "overlay", "catalogue", "shrinks")
    file.write_text(
        json.dumps({name: str(getattr(options, name)) for name in names} | {"masks": options.masks, "threads": 1})
    )
    root = Path(__file__).resolve().parents[2]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "porter.verify.entry",
        "--pyargs",
        "porter.verify",
        f"--porter-options={file}",
    ]

    def outer(*extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *extra], cwd=root, capture_output=True, text=True, check=False)

    found = outer("-k", "64", "-v", "-p", "no:cacheprovider")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "test_plain[64] PASSED" in found.stdout and "1 passed" in found.stdout and "copy_tl" in found.stdout
    refused = outer("--porter-flavour=tpu")
    assert refused.returncode == 2 and "unknown flavour" in refused.stderr
