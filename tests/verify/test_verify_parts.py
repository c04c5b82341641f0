"""The parts of a verification on their own."""

from __future__ import annotations

import ast
import math
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fake_upstream import COPY_BACKEND, OPS, make_overlay, make_upstream, write_tree

from porter.errors import UsageError
from porter.surface.model import Contract, Kernel, KernelArgument, Symbol, SymbolKind, TensorSpec
from porter.verify.api import VerifyOptions, check_options, options_from, prepare, share_out
from porter.verify.catalogue import load_catalogue, parse_catalogue
from porter.verify.contracts import masks_from_symbols
from porter.verify.entry import inner_arguments
from porter.verify.errors import CatalogueError, MaskError, ShrinkError, WorkspaceError
from porter.verify.events import CaseResult, Events, EventWriter, FactoryCount, read_events
from porter.verify.judge import Outcome, Verdict, judge
from porter.verify.masks import BoundArgument, KernelMask, MaskViolation, WriteGuard, bind, parameter_names, read_masks
from porter.verify.recorder import largest_difference
from porter.verify.report import build_report
from porter.verify.session import Session, read_session
from porter.verify.shrink import Shrink, load_shrinks, parse_shrinks, shrink_folder, shrink_text
from porter.verify.workspace import brings_platform, make_workspace, stage_overrides

# shrinking

TEXT = """\
SIZE = 16384  # größer
PAIRS = [(64, 8), (64, 16)]

def helper(a, *, rows: int = 300, other: int = 300):
    n = 300
    return a * 300

@pytest.mark.parametrize("rows", [1, 300])
@pytest.mark.parametrize("other", [300])
def test_it(rows):
    é, n = 1, 1024 + 300
    use(rows=300, other=300)
"""


@pytest.mark.parametrize(
    ("shrink", "line", "expected"),
    [
        (Shrink("f", "SIZE", 16384, 5), 1, "SIZE = 5  # größer"),
        (Shrink("f", "PAIRS", 64, 3, count=2), 2, "PAIRS = [(3, 8), (3, 16)]"),
        (Shrink("f", "helper", 300, 7, name="rows"), 4, "def helper(a, *, rows: int = 7, other: int = 300):"),
        (Shrink("f", "helper", 300, 7, name="n"), 5, "    n = 7"),
        (Shrink("f", "test_it", 300, 7, count=2, name="rows"), 8, '@pytest.mark.parametrize("rows", [1, 7])'),
        (Shrink("f", "test_it", 300, 7, name="n"), 11, "    é, n = 1, 1024 + 7"),
    ],
)
def test_shrink(shrink: Shrink, line: int, expected: str) -> None:
    before, after = TEXT.splitlines(), shrink_text(TEXT, [shrink], "f").splitlines()
    assert after[line - 1] == expected
    changed = {number for number, (old, new) in enumerate(zip(before, after, strict=True), 1) if old != new}
    assert changed == ({8, 12} if shrink.name == "rows" and shrink.scope == "test_it" else {line})


@pytest.mark.parametrize(
    ("shrink", "message"),
    [
        (Shrink("f", "GONE", 1, 2), "no module-level 'GONE'"),
        (Shrink("f", "SIZE", 16385, 2), "16385 stands here 0 times, expected 1"),
        (Shrink("f", "PAIRS", 64, 2), "64 stands here 2 times, expected 1"),
        (Shrink("f", "helper", 300, 2, name="gone"), "helper, gone: the number 300 stands here 0 times"),
    ],
)
def test_shrink_that_does_not_fit(shrink: Shrink, message: str) -> None:
    with pytest.raises(ShrinkError) as caught:
        shrink_text(TEXT, [shrink], "f.py")
    assert message in str(caught.value) and "f.py" in str(caught.value) and caught.value.exit_code == 3


def test_shrink_writes_nothing_when_one_fails(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("SIZE = 4\n")
    with pytest.raises(ShrinkError, match="does not exist"):
        shrink_folder(tmp_path, [Shrink("a.py", "SIZE", 4, 2), Shrink("b.py", "SIZE", 4, 2)])
    assert (tmp_path / "a.py").read_text() == "SIZE = 4\n"
    assert shrink_folder(tmp_path, [Shrink("a.py", "SIZE", 4, 2)]) == ("a.py",)
    assert (tmp_path / "a.py").read_text() == "SIZE = 2\n"


def test_shrink_table_is_read_strictly() -> None:
    with pytest.raises(CatalogueError):
        parse_shrinks('[[shrink]]\nfile = "a"\nscope = "b"\nold = 1\nnew = 2\nextra = 3\n')


def test_shrinks_fit_the_pinned_upstream(source_root: Callable[[str], Path], tmp_path: Path) -> None:
    shrinks = load_shrinks()
    assert all(shrink.new < shrink.old or (shrink.new > shrink.old and shrink.keeps) for shrink in shrinks)
    source = source_root("deepinfer") / OPS
    for path in source.glob("*.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert set(shrink_folder(tmp_path, shrinks)) == {shrink.file for shrink in shrinks}
    for name in {shrink.file for shrink in shrinks}:
        assert _without_numbers(tmp_path / name) == _without_numbers(source / name)


def _without_numbers(path: Path) -> str:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and type(node.value) is int:
            node.value = 0
    return ast.dump(tree)


# the catalogue


def test_catalogue_names_the_pinned_upstreams_tests(source_root: Callable[[str], Path]) -> None:
    found = set()
    for path in (source_root("deepinfer") / OPS).glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                marks = {ast.unparse(mark) for mark in node.decorator_list}
                if "pytest.mark.benchmark" not in marks:
                    found.add(f"{path.stem}::{node.name}")
    assert found == set(load_catalogue().tests)


def test_catalogue_names_the_pinned_upstreams_factories(source_root: Callable[[str], Path]) -> None:
    names = set()
    for path in (source_root("deepinfer") / OPS).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr.endswith("_tl"):
                names.add(node.attr)
    assert set(load_catalogue().factories) == names - {"detect_outlier_and_abort_tl"}  # its module holds no test


@pytest.mark.parametrize(
    "text",
    [
        'test = [{ name = "a::b" }, { name = "a::b" }]',
        'test = [{ name = "a::b", typo = 1 }]',
        "test = [{ factories = [] }]",
        'test = [{ name = "a::b" }]\n[[skip]]\nflavour = "tpu"\ntest = "a::b"\ncase = ""\ncases = 1\nreason = ""',
        'test = [{ name = "a::b" }]\n[[skip]]\nflavour = "npu"\ntest = "a::c"\ncase = ""\ncases = 1\nreason = ""',
        'test = [{ name = "a::b" }]\n[[skip]]\nflavour = "npu"\ntest = "a::b"\ncase = "("\ncases = 1\nreason = ""',
        "test = ",
    ],
)
def test_catalogue_is_read_strictly(text: str) -> None:
    with pytest.raises(CatalogueError):
        parse_catalogue(text)


# verdicts

CATALOGUE = parse_catalogue(
    'test = [{ name = "m::t", factories = ["a_tl"], sometimes = ["b_tl"] }]\n'
    '[[skip]]\nflavour = "npu"\ntest = "m::t"\ncase = "x.*"\ncases = 1\nreason = "known"'
)


@pytest.mark.parametrize(
    ("outcome", "case", "full", "verdict", "code"),
    [
        (Outcome("passed", called=("a_tl", "b_tl")), "", False, Verdict.PASSED, ""),
        (Outcome("passed", called=("c_tl",)), "", False, Verdict.FAILED, "PV010"),
        (Outcome("passed", missing=("a_tl",)), "", False, Verdict.FAILED, "PV002"),
        (Outcome("skipped", missing=("a_tl",)), "x1", False, Verdict.FAILED, "PV002"),
        (Outcome("skipped", missing=("z_tl",)), "", False, Verdict.LEFT_OUT, ""),
        (Outcome("passed", missing=("z_tl",)), "", False, Verdict.LEFT_OUT, ""),
        (Outcome("failed", missing=("z_tl", "a_tl")), "", False, Verdict.FAILED, "PV002"),
        (Outcome("passed", violations=(("a_tl", "wrote"),)), "", False, Verdict.FAILED, "PV003"),
        (Outcome("failed", violations=(("a_tl", "wrote"),), missing=("z_tl",)), "", False, Verdict.FAILED, "PV003"),
        (Outcome("skipped"), "x1", False, Verdict.SKIPPED, ""),
        (Outcome("skipped"), "y", False, Verdict.FAILED, "PV004"),
        (Outcome("skipped"), "yx1", False, Verdict.FAILED, "PV004"),
        (Outcome("failed"), "x1", False, Verdict.FAILED, "PV001"),
        (Outcome("failed", capped="over"), "", False, Verdict.FAILED, "PV006"),
        (Outcome("failed", capped="over"), "", True, Verdict.OVER, ""),
    ],
)
def test_judge(outcome: Outcome, case: str, full: bool, verdict: Verdict, code: str) -> None:
    result = judge(outcome, "npu", "m::t", case, CATALOGUE, {"z_tl": "off"}, full)
    assert (result.verdict, result.code) == (verdict, code)


def test_a_known_skip_holds_for_its_flavour_only() -> None:
    assert judge(Outcome("skipped"), "gpu", "m::t", "x1", CATALOGUE, {}, False).code == "PV004"


# masks


def guarded(arguments: list[BoundArgument], write: Callable[[], object]) -> list[str]:
    guard = WriteGuard(arguments)
    guard.take()
    write()
    return guard.violations()


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool,
        torch.uint8,
        torch.float8_e4m3fn,
        torch.bfloat16,
        torch.float32,
        torch.int64,
        torch.uint64,
        torch.complex128,
    ],
)
def test_guard_sees_one_changed_element(dtype: torch.dtype) -> None:
    backing = torch.zeros(6, 8, dtype=torch.uint8).repeat(1, 16).view(dtype).reshape(-1)
    view = backing[3:23].view(4, 5)[:, 1:3]
    one = torch.ones((), dtype=torch.uint8).repeat(16)[: dtype.itemsize].view(dtype)[0]
    inside, outside = 3 + 5 * 2 + 1, 3 + 5 * 2 + 3

    def put(position: int) -> None:
        backing[position] = one

    assert guarded([BoundArgument("x", view, False)], lambda: None) == []
    assert "read-only argument x" in guarded([BoundArgument("x", view, False)], lambda: put(inside))[0]
    backing.view(torch.uint8).zero_()
    assert guarded([BoundArgument("x", view, True)], lambda: put(inside)) == []
    assert guarded([BoundArgument("x", view, None)], lambda: put(inside)) == []
    assert "memory outside x" in guarded([BoundArgument("x", view, True)], lambda: put(outside))[0]
    backing.view(torch.uint8).zero_()
    assert "memory outside x" in guarded([BoundArgument("x", view, False)], lambda: put(outside))[0]


def test_guard_compares_bytes_not_values() -> None:
    x = torch.tensor([0.0, math.nan])
    assert guarded([BoundArgument("x", x, False)], lambda: None) == []
    assert guarded([BoundArgument("x", x, False)], lambda: x[:1].neg_())[0].startswith("read-only argument x")


def test_guard_with_two_views_of_one_storage() -> None:
    backing = torch.zeros(8)
    arguments = [BoundArgument("x", backing[:4], False), BoundArgument("out", backing[2:6], True)]
    assert guarded(arguments, lambda: backing[2:6].fill_(1)) == []
    assert "read-only argument x" in guarded(arguments, lambda: backing[0:1].fill_(1))[0]
    assert "memory outside x, out" in guarded(arguments, lambda: backing[7:].fill_(1))[0]


@pytest.mark.parametrize("shape", [((3, 4), (0, 1)), ((2, 3), (1, 1)), ((0, 4), (4, 1)), ((), ())])
def test_guard_with_unusual_strides(shape: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    backing = torch.zeros(32)
    view = backing.as_strided(*shape, 8)

    def fill() -> None:
        backing[8 : 8 + (1 if not shape[0] else 4)] = 1 if view.numel() else 0

    assert guarded([BoundArgument("out", view, True)], fill) == []
    assert guarded([BoundArgument("out", view, True)], lambda: backing[0:1].fill_(2)) != []


def test_guard_of_a_strided_view_holds_one_copy() -> None:
    """A padded view is the common case: it must not cost an index an element."""
    storage = torch.zeros(1 << 20, 3, dtype=torch.int8)
    guard = WriteGuard([BoundArgument("out", storage[:, 1:], True), BoundArgument("x", storage[::2, 0], False)])
    assert guard.size == 3 << 20
    with torch.profiler.profile(profile_memory=True) as profile:
        guard.take()
        assert guard.violations() == []
    assert sum(max(0, event.self_cpu_memory_usage) for event in profile.events()) < 8 << 20


def test_masks_pick_the_kernel_by_its_parameters() -> None:
    masks = read_masks({"f": [{"x": False, "out": True}, {"x": True, "y": None}]})["f"]
    x = torch.ones(1)
    assert [(a.name, a.written) for a in bind(masks, ("x", "y"), (x,), {"y": x})] == [("x", True), ("y", None)]
    assert [(a.name, a.written) for a in bind(masks, ("out", "x"), (x, x), {})] == [("out", True), ("x", False)]
    assert [(a.name, a.written) for a in bind(masks, ("x", "out"), (x, 3), {})] == [("x", False)]
    assert [(a.name, a.written) for a in bind(masks, None, (x,), {"out": x})] == [("x", False), ("out", True)]
    with pytest.raises(MaskViolation, match="its contract has"):
        bind(masks, ("x", "z"), (x, x), {})
    with pytest.raises(MaskViolation):
        bind(masks, None, (x, x, x), {})


def test_parameter_names() -> None:
    assert parameter_names(lambda x, y=1, *, z: None) == ("x", "y", "z")
    assert parameter_names(lambda *args: None) is None


@pytest.mark.parametrize("data", [{"f": {"x": 1}}, {"f": "x"}, {"f": [["x"]]}, {"f": 3}])
def test_masks_are_read_strictly(data: dict[str, object]) -> None:
    with pytest.raises(MaskError):
        read_masks(data)


def test_kernel_mask_keeps_order() -> None:
    assert read_masks({"f": {"b": True, "a": False}})["f"] == (KernelMask((("b", True), ("a", False))),)


def factory(name: str, *kernels: Kernel, out_idx: str | None = None) -> Symbol:
    contract = Contract(kernels=kernels, out_idx=out_idx) if kernels else None
    return Symbol(
        id=f"ops.{name}", source="s", kind=SymbolKind.FACTORY, module="ops", qualname=name, path="p", contract=contract
    )


def kernel(**written: bool | None) -> Kernel:
    return Kernel(
        "k", "prim_func", tuple(KernelArgument(name, TensorSpec("tensor"), flag) for name, flag in written.items())
    )


def test_masks_from_contracts() -> None:
    masks = masks_from_symbols(
        [
            factory("two_tl", kernel(x=False, y=True), kernel(x=None)),
            factory("scratch_tl", kernel(x=False, y=True, s=True, t=True), out_idx="[2, -1]"),
            factory("sends_on_tl", Kernel("", "delegated", delegate="ops.two_tl")),
            factory("resolved_tl", replace(kernel(x=True), style="delegated", delegate="_hidden_tl")),
            factory("loops_tl", Kernel("", "delegated", delegate="loops_tl")),
            factory("unknown_tl", kernel(x=True), out_idx="which(x)"),
            factory("bare_tl"),
        ]
    )
    assert masks == {
        "two_tl": [{"x": False, "y": True}, {"x": None}],
        "scratch_tl": [{"x": False, "y": True}],
        "resolved_tl": [{"x": True}],
        "sends_on_tl": [{"x": False, "y": True}, {"x": None}],
    }
    assert set(read_masks(masks)) == set(masks)


# comparisons


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (torch.tensor([1.0, math.nan, math.inf]), torch.tensor([1.5, math.nan, math.inf]), 0.5),
        (torch.tensor([math.inf]), torch.tensor([-math.inf]), math.inf),
        (torch.tensor([math.nan]), torch.tensor([1.0]), math.inf),
        (torch.tensor([1]), torch.tensor([4]), 3.0),
        (torch.tensor([True]), torch.tensor([False]), 1.0),
        (torch.empty(0), torch.empty(0), 0.0),
    ],
)
def test_largest_difference(left: torch.Tensor, right: torch.Tensor, expected: float) -> None:
    assert largest_difference(left, right) == expected


def test_largest_difference_of_other_shapes() -> None:
    assert math.isnan(largest_difference(torch.ones(2), torch.ones(3)))


# trees


def test_overlay_may_not_replace_upstream(tmp_path: Path) -> None:
    upstream = make_upstream(tmp_path / "up", {})
    overlay = make_overlay(tmp_path / "over", {"plain": COPY_BACKEND})
    write_tree(overlay, {f"{OPS}/ops.py": "# mine\n"})
    with pytest.raises(WorkspaceError, match="would replace a file of upstream"):
        make_workspace(tmp_path / "w1", upstream, overlay)
    (overlay / OPS / "ops.py").write_bytes((upstream / OPS / "ops.py").read_bytes())
    workspace = make_workspace(tmp_path / "w2", upstream, overlay)
    assert workspace.platform == "patched" and (workspace.backend / "plain.py").is_file()
    with pytest.raises(WorkspaceError, match="is not empty"):
        make_workspace(tmp_path / "w2", upstream, overlay)


def test_workspace_needs_an_upstream_and_a_backend(tmp_path: Path) -> None:
    upstream = make_upstream(tmp_path / "up", {})
    with pytest.raises(WorkspaceError, match="no backend to judge"):
        make_workspace(tmp_path / "w1", upstream, None)
    (tmp_path / "empty").mkdir()
    with pytest.raises(WorkspaceError, match="in the emitted tree"):
        make_workspace(tmp_path / "w2", upstream, tmp_path / "empty")
    with pytest.raises(WorkspaceError, match="in the upstream folder"):
        make_workspace(tmp_path / "w3", tmp_path / "empty", None)


def test_tree_that_brings_its_platform(tmp_path: Path) -> None:
    upstream = make_upstream(tmp_path / "up", {})
    assert not brings_platform(upstream)
    write_tree(upstream, {"deepinfer/platform.py": "from deepinfer.platform_neuron import PlatformNeuron\n"})
    assert not brings_platform(upstream)
    write_tree(upstream, {"deepinfer/platform_neuron.py": "class PlatformNeuron:\n    pass\n"})
    assert brings_platform(upstream)


def test_stage_overrides(tmp_path: Path) -> None:
    write_tree(tmp_path / "o", {"tilelang_ops/a.py": COPY_BACKEND, "shared/numerics/b.py": "X = 1\n"})
    root = stage_overrides(tmp_path / "o", tmp_path / "staged")
    assert {str(path.relative_to(root)) for path in root.rglob("*.py")} == {
        f"{OPS}/neuron/a.py",
        f"{OPS}/neuron/__init__.py",
        "deepinfer/neuron_ops/vendor/numerics/b.py",
    }


def test_workspace_is_removed(tmp_path: Path) -> None:
    options = VerifyOptions(
        upstream=make_upstream(tmp_path / "up", {}),
        overlay=make_overlay(tmp_path / "over", {"plain": COPY_BACKEND}),
        full=True,
    )
    with prepare(options) as prepared:
        root = prepared.workspace.root
        assert read_session(prepared.session_path) == prepared.session
    assert not root.exists()


def test_termination_removes_the_workspace(tmp_path: Path) -> None:
    overlay = make_overlay(tmp_path / "over", {"plain": COPY_BACKEND})
    options = VerifyOptions(upstream=make_upstream(tmp_path / "up", {}), overlay=overlay, full=True)
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught, prepare(options) as prepared:
        root = prepared.workspace.root
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 143 and not root.exists() and signal.getsignal(signal.SIGTERM) is handler


def test_shrink_error_stops_the_run(tmp_path: Path) -> None:
    options = VerifyOptions(
        upstream=make_upstream(tmp_path / "up", {}), overlay=make_overlay(tmp_path / "over", {"plain": COPY_BACKEND})
    )
    with pytest.raises(ShrinkError), prepare(options):
        pass


# the rest


def test_share_out() -> None:
    assert share_out(["a", "b", "c", "d"], {"a": 5, "b": 3, "c": 3, "d": 1}, 2) == (("a", "d"), ("b", "c"))
    assert share_out(["a"], {}, 4) == (("a",),)
    assert share_out([], {}, 2) == ()


@pytest.mark.parametrize(
    "changes", [{"flavour": "tpu"}, {"jobs": 0}, {"memory": 0}, {"overlay": Path("a"), "overrides": Path("b")}]
)
def test_options_are_checked(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        check_options(VerifyOptions(upstream=Path("up"), **changes))  # type: ignore[arg-type]


def test_options_from_plain_data() -> None:
    options = options_from({"upstream": "up", "masks": {"f": {"x": True}}, "files": ["a"], "paths": ["p"]})
    assert options == VerifyOptions(upstream=Path("up"), masks={"f": {"x": True}}, files=("a",), paths=(Path("p"),))
    for data in ({}, {"upstream": "up", "typo": 1}):
        with pytest.raises(UsageError):
            options_from(data)


def test_inner_arguments() -> None:
    here = Path(__file__).resolve().parent
    asked = [
        "--pyargs",
        "porter.verify",
        "-k",
        "norm",
        "--porter-options=f",
        "--porter-flavour",
        "gpu",
        "--porter-full",
        "-x",
    ]
    assert inner_arguments(asked, here) == ["-k", "norm", "-x"]
    assert inner_arguments([str(here), "-q"], here) == ["-q"]
    assert inner_arguments(["tests", "-k", "norm"], here) is None


def test_events_survive_a_cut_line(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "1.jsonl")
    writer.write("collected", cases=[["n1", "m::t", ""], ["n2", "m::t", "x"]], partial=False)
    writer.write("begin", nodeid="n1")
    writer.case(CaseResult("n1", "m::t", "", Verdict.PASSED, worst=math.inf))
    writer.write("begin", nodeid="n2")
    writer.close()
    with (tmp_path / "1.jsonl").open("a") as file:
        file.write('{"event": "case", "nodeid"')
    events = read_events(tmp_path)
    assert events.open == ["n2"] and events.cases["n1"].worst == math.inf and set(events.collected) == {"n1", "n2"}


@pytest.mark.parametrize(
    ("events", "codes"),
    [
        (Events(finished=1), ["PV002", "PV009", "PV010"]),
        (Events(finished=1, exported=("a_tl", "b_tl")), ["PV009", "PV010"]),
        (Events(finished=1, exported=("a_tl", "b_tl"), partial=True), ["PV009"]),
        (Events(finished=1, exported=("a_tl", "b_tl"), collected={"n": ("m::t", "")}), ["PV009", "PV013"]),
        (Events(collected={"n": ("m::t", "")}, open=["n"]), ["PV007", "PV009"]),
        (Events(problems=[("PV012", "no module", "")]), ["PV012"]),
        (
            Events(
                collected={"n": ("m::t", "")},
                cases={"n": CaseResult("n", "m::t", "", Verdict.PASSED, factories={"a_tl": FactoryCount(1, 0.0)})},
                exported=("a_tl", "b_tl"),
                finished=1,
            ),
            ["PV005"],  # the skip that CATALOGUE announces did not come
        ),
    ],
)
def test_a_run_without_proof_is_not_green(events: Events, codes: list[str]) -> None:
    report = build_report(events, Session(root="", results=""), CATALOGUE)
    assert sorted({finding.code for finding in report.findings}) == codes and report.exit_code == 1


def test_session_round_trip(tmp_path: Path) -> None:
    session = Session(root="r", results="s", files=("a",), masks={"f": {"b": True, "a": None}}, done=("x",), memory=5)
    session.write(tmp_path / "s.json")
    read = read_session(tmp_path / "s.json")
    assert read == session and list(read.masks["f"]) == ["b", "a"]
