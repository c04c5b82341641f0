"""Every seam on the pinned DeepInfer: it fits, does the least, and refuses an upstream whose anchor moved."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from porter.seams import api
from porter.seams.errors import SeamError
from porter.seams.model import FileChange, Seam
from porter.seams.pysource import splice
from porter.seams.registry import SEAMS
from tests.seams.conftest import snapshot

BY_NAME = {seam.name: seam for seam in SEAMS}


def edit(root: Path, seam: Seam) -> tuple[str, str]:
    before = (root / seam.path).read_bytes()
    return before.decode(), splice(before, seam.edits(before)).decode()


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.name)
def test_a_seam_fits_and_removes_next_to_nothing(seam: Seam, source_root: Callable[[str], Path]) -> None:
    before, after = edit(source_root("deepinfer"), seam)
    assert before != after
    diff = FileChange(seam.path, before.encode(), after.encode()).diff()
    removed = [line for line in diff.splitlines() if line.startswith("-") and not line.startswith("---")]
    assert len(removed) <= 3, removed


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.name)
def test_a_seam_fits_windows_line_ends_too(seam: Seam, source_root: Callable[[str], Path]) -> None:
    before, after = edit(source_root("deepinfer"), seam)
    data = before.replace("\n", "\r\n").encode()
    assert splice(data, seam.edits(data)) == after.replace("\n", "\r\n").encode()


def test_seams_have_their_own_names_and_say_what_for() -> None:
    assert len(BY_NAME) == len(SEAMS)
    assert all(seam.purpose and re.fullmatch(r"[a-z]+(-[a-z]+)*", seam.name) for seam in SEAMS)


# (seam, what upstream's next release might do to it: pattern -> replacement, what must be named, near which text)
MUTATIONS = [
    ("package-init", r"def _so_platform_tag\(", "def _platform_tag(", "function _so_platform_tag", "def _platform_tag("),
    ("package-init", r'\("nvidia", "ascend"\)', '("nvidia", "ascend", "tpu")', 'the tuple ("nvidia", "ascend")', "def _so_platform_tag"),
    ("package-init", r"__path__\.append", "__path__.extend", "appends the extension's folder", None),
    ("platform-choice", r"def get_platform\(", "def choose_platform(", "function get_platform", "def choose_platform("),
    ("platform-choice", r"class Platform:", "class BasePlatform:", "class Platform in", None),
    ("platform-choice", r"def is_npu\(self", "def on_npu(self", "function is_npu in Platform", None),
    ("platform-choice", r"def is_gpu\(self\)", "def is_neuron(self)", "no is_neuron in Platform", "def is_neuron("),
    ("platform-choice", r"accelerator_kind", "kind_of_machine", "get_platform to use accelerator_kind", "def get_platform("),
    ("accelerator-kind", r"def device_numa_node\(index: int", "def device_numa_node(device: int", "device_numa_node(index, _root)", "def device_numa_node("),
    ("accelerator-kind", r"AcceleratorKind = Literal", "Kind = Literal", "AcceleratorKind = ...", None),
    ("accelerator-kind", r"import ascend, nvidia", "import ascend, nv", "import nvidia", None),
    ("accelerator-kind", r"def get_bf16_tflops_limit\(\)", "def get_tflops_limit()", "get_bf16_tflops_limit", "def get_tflops_limit("),
    ("numa-binding", r"def bind_numa\(node", "def bind_numa(numa", "bind_numa(node)", "def bind_numa("),
    ("engine-helpers", r"def bind_cpu\(", "def bind_cpus(", "function bind_cpu", "def bind_cpus("),
    ("engine-helpers", r"def get_distributed_init_method\(\n    parallel_config", "def get_distributed_init_method(\n    config", "get_distributed_init_method(parallel_config)", "def get_distributed_init_method("),
    ("engine-arguments", r"context_parallel_size: int", "cp: int", "EngineArgs with context_parallel_size", "class EngineArgs"),
    ("engine-arguments", r"def __post_init__", "def __after_init__", "function __post_init__ in EngineArgs", "def __after_init__"),
    ("engine-control", r"mm_enabled", "multi_modal", "mm_enabled = ... once in __init__", "def __init__"),
    ("engine-control", r"PG\.cpu_data_parallel_group\(\) if envs\.DEEPINFER_ZERO_OVERHEAD_SCHEDULING else PG", "PG.cpu_data_parallel_group() if self.zos else PG", "a choice by envs.DEEPINFER_ZERO_OVERHEAD_SCHEDULING", "def _create_scheduler"),
    ("worker-threads", r"set_num_interop_threads", "set_interop", "_init_torch to use set_num_interop_threads", "def _init_torch"),
    ("moe-kernel", r"self\.use_mega_moe = \(", "self.mega = (", "self.use_mega_moe = ...", "def __init__"),
    ("moe-kernel", r"= torch\.Tensor\(\)", "= None", "an if that empties hidden_states", "def routed_experts_forward"),
    ("mhc-splits", r"N_SPLITS_ASCEND", "SPLITS_ON_NPU", "default_n_splits to use N_SPLITS_ASCEND", "def default_n_splits"),
    ("index-logits", r"PLATFORM\.is_gpu else", "not PLATFORM.is_npu else", "an argument chosen by PLATFORM.is_gpu", "def _get_decode_metadata"),
    ("index-logits", r"class MQA\(", "class IndexAttention(", "class MQA", None),
    ("build-script", r"IS_NPU", "ON_NPU", "if IS_NPU: ...", None),
    ("build-script", r"CXX_FLAGS = \[", "CXX = [", "CXX_FLAGS = ...", None),
    ("build-script", r"ext_modules=\[deepinfer_extension\]", "ext_modules=extensions", "ext_modules=[deepinfer_extension]", None),
    ("source-archive", r"recursive-include csrc", "graft csrc", "recursive-include csrc", None),
    ("device-choice", r"get_default_device\(\) \{", "default_device() {", "function get_default_device", None),
    ("device-choice", r"inline torch::Device get_default_device\(\) \{\n#ifdef WITH_NPU", "inline torch::Device get_default_device() {\n#ifdef USE_NPU", "#ifdef WITH_NPU in get_default_device", "get_default_device() {"),
    ("slot-copies", r"clone_and_zero_states_and_blocks\(torch::Tensor &states, torch::Tensor &blocks", "clone_and_zero_states_and_blocks(torch::Tensor &blocks, torch::Tensor &states", "clone_and_zero_states_and_blocks(states, blocks", "clone_and_zero_states_and_blocks("),
    ("slot-copies", r"cuda_copy_async", "copy_rows", "to use cuda_copy_async", "clone_and_zero_states_and_blocks("),
    ("pinned-options", r"pinned_memory\(true\)", "pinned_memory(false)", "one call .pinned_memory(true) in pinned", "pinned("),
    ("pinned-load-plan", r"BlockLoadPlanBuilder::build\(\)", "BlockLoadPlanBuilder::make()", "function build", None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "pattern", "replacement", "expected", "near"), MUTATIONS)
def test_a_moved_anchor_is_refused_with_place_and_expectation(
    name: str,
    pattern: str,
    replacement: str,
    expected: str,
    near: str | None,
    checkout: Path,
    payload: dict[str, bytes],
) -> None:
    path = checkout / BY_NAME[name].path
    text, count = re.subn(pattern, replacement, path.read_text())
    assert count, "the mutation matches nothing"
    path.write_text(text)
    before = snapshot(checkout)
    with pytest.raises(SeamError) as caught:
        api.plan(checkout, payload, seams=[BY_NAME[name]])
    finding = caught.value.findings[0]
    assert (finding.path, finding.symbol) == (BY_NAME[name].path, f"seams.{name}")
    assert expected in finding.expected
    assert f"{finding.path}:{finding.line}: seam {name}: expected" in str(caught.value)
    if near is not None:
        assert near in text.splitlines()[finding.line - 1]
    assert snapshot(checkout) == before
    assert api.check(checkout, seams=[BY_NAME[name]]) == caught.value.findings


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.name)
def test_a_file_that_is_gone_is_refused(seam: Seam, checkout: Path, payload: dict[str, bytes]) -> None:
    (checkout / seam.path).unlink()
    if seam.path == "setup.py":  # then the folder is no checkout at all
        with pytest.raises(api.CheckoutError, match=r"setup\.py"):
            api.plan(checkout, payload)
        return
    before = snapshot(checkout)
    with pytest.raises(SeamError) as caught:
        api.plan(checkout, payload, seams=[seam])
    assert {finding.path for finding in caught.value.findings} == {seam.path}
    assert "no such file" in str(caught.value) and f"{seam.path}:1" in str(caught.value)
    assert snapshot(checkout) == before


def test_all_seams_are_checked_before_the_first_refusal(checkout: Path, payload: dict[str, bytes]) -> None:
    (checkout / "deepinfer/platform.py").write_text("x = 1\n")
    (checkout / "csrc/engine/scheduler.hpp").write_text("int x;\n")
    (checkout / "deepinfer/utils.py").write_text("def broken(:\n")
    with pytest.raises(SeamError, match="3 seams do not fit") as caught:
        api.plan(checkout, payload)
    assert [finding.path for finding in caught.value.findings] == [
        "deepinfer/platform.py", "deepinfer/utils.py", "csrc/engine/scheduler.hpp",
    ]  # fmt: skip
    assert caught.value.exit_code == 1


def test_moved_code_around_an_anchor_is_no_drift(checkout: Path, payload: dict[str, bytes], tmp_path: Path) -> None:
    """Reformatting, comments and new neighbours must not stop a seam."""
    path = checkout / "deepinfer/platform.py"
    path.write_text(
        "# a new comment\n\n"
        + path.read_text().replace("@functools.cache\n", "def helper():\n    return 1\n\n\n@functools.cache\n")
    )
    header = checkout / "csrc/cuda_utils.hpp"
    header.write_text(
        "// a new comment\n" + header.read_text().replace("inline torch::Device", "inline\n    torch::Device")
    )
    assert api.check(checkout) == ()
    api.apply(api.plan(checkout, payload))
    shutil.copytree(checkout, tmp_path / "again")
    assert api.plan(tmp_path / "again", payload).up_to_date
