"""The host-only C++ extension: built by upstream's own command, agreeing with its stubs, right in what it does."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.platform.conftest import Run, environ

pytestmark = pytest.mark.engine


@pytest.fixture
def on_both(engine: Path, run: Run) -> Callable[[str], None]:
    """Runs a script on the host and on the stand-in device."""

    def execute(script: str) -> None:
        lead = "import deepinfer; deepinfer.PLATFORM\nimport numpy as np\nimport torch\nfrom deepinfer._C import cuda_utils, engine, graph_timer\n"
        import textwrap

        for device in ("cpu", "neuron"):
            done = run(lead + textwrap.dedent(script), device=device)
            assert done.returncode == 0, f"{device}\n{done.stderr[-3000:]}"

    return execute


def test_the_library_lies_in_its_tag_folder_and_needs_torch_alone(engine: Path) -> None:
    folder = engine / f"deepinfer/_so/neuron-{os.uname().machine}"
    (library,) = folder.glob("_C.*.so")
    assert not list((engine / "deepinfer").glob("_C*.so"))
    needed = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=True).stdout
    assert "libtorch_python.so" in needed and "not found" not in needed
    assert not re.search(r"libcuda|libcudart|ascend|torch_npu|libfmt", needed.split("libtorch_cpu")[0])


def test_it_imports_before_torch(engine: Path, run: Run) -> None:
    done = run("import deepinfer._C as c; print(c.__file__)")
    assert done.returncode == 0, done.stderr
    assert f"_so/neuron-{os.uname().machine}/_C." in done.stdout


def test_stubs_and_module_agree(engine: Path, run: Run) -> None:
    """Every name of the .pyi files is in the module with the same arguments, and the other way round."""
    expected: dict[str, list[str] | None] = {}
    for name in ("cuda_utils", "engine", "graph_timer"):
        tree = ast.parse((engine / f"deepinfer/_C/{name}.pyi").read_text())
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                expected[f"{name}.{node.name}"] = [
                    a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                ]
            elif isinstance(node, ast.ClassDef):
                expected[f"{name}.{node.name}"] = None
                for member in node.body:
                    if isinstance(member, ast.FunctionDef):
                        expected[f"{name}.{node.name}.{member.name}"] = None
    done = run("""
        import json, re
        from deepinfer._C import cuda_utils, engine, graph_timer
        found = {}
        for module in (cuda_utils, engine, graph_timer):
            short = module.__name__.split(".")[-1]
            for name, value in vars(module).items():
                if name.startswith("__"):
                    continue
                if isinstance(value, type):
                    found[f"{short}.{name}"] = None
                    for member in vars(value):
                        if not member.startswith("_") or member in ("__init__", "__eq__", "__hash__"):
                            found[f"{short}.{name}.{member}"] = None
                elif callable(value):
                    text = re.match(r"\\w+\\((.*)\\) ->", value.__doc__.strip().splitlines()[0]).group(1)
                    found[f"{short}.{name}"] = re.findall(r"(?:^|, )(\\w+):", text)
        print(json.dumps(found))
    """)
    assert done.returncode == 0, done.stderr
    import json

    found = json.loads(done.stdout)
    functions = {name: arguments for name, arguments in expected.items() if arguments is not None}
    assert {name: found.get(name) for name in functions} == functions
    public = {name for name in expected if expected[name] is None and "__" not in name}
    assert public - set(found) == set()
    classes = {name for name in found if name.count(".") == 1}
    assert classes - set(expected) <= {name for name in classes if found[name] is None and name.split(".")[1][0] == "_"}


SLOTS = """
    def pools(states=6, blocks=5, width=8):
        device = torch.zeros(1, device="cuda").device
        s = torch.arange(states * width, dtype=torch.int64).view(states, width).to(torch.uint8)
        b = (100 + torch.arange(blocks * width)).view(blocks, width).to(torch.uint8)
        return s.to(device), b.to(device), s.clone(), b.clone()

    def call(s, b, states=(), blocks=(), zero=()):
        pairs = lambda rows: np.array(rows, dtype=np.int32).reshape(-1, 2)
        return engine.clone_and_zero_states_and_blocks(s, b, pairs(states), pairs(blocks), np.array(zero, dtype=np.int32))
"""


def test_slots_are_copied_and_zeroed(on_both: Callable[[str], None]) -> None:
    on_both(SLOTS + """
    s, b, s0, b0 = pools()
    where = s.data_ptr(), b.data_ptr()
    released = call(s, b, states=[(1, 4)], blocks=[(2, 3)], zero=[0, 5])
    s0[4], b0[3], s0[0], s0[5] = s0[1].clone(), b0[2].clone(), 0, 0
    assert torch.equal(s.cpu(), s0) and torch.equal(b.cpu(), b0)
    assert (s.data_ptr(), b.data_ptr()) == where
    assert [list(r) for r in released] == [[1], [2]] and all(r.dtype == np.int32 for r in released)
    """)


def test_copies_run_in_order_and_chains_see_earlier_writes(on_both: Callable[[str], None]) -> None:
    on_both(SLOTS + """
    s, b, s0, b0 = pools()
    released = call(s, b, states=[(0, 1), (1, 2), (3, 3), (4, 1)], blocks=[(1, 2), (2, 3)])
    s0[1] = s0[0]; s0[2] = s0[1]; s0[1] = s0[4]
    b0[2] = b0[1]; b0[3] = b0[2]
    assert torch.equal(s.cpu(), s0) and torch.equal(b.cpu(), b0)
    assert [list(r) for r in released] == [[0, 1, 3, 4], [1, 2]]
    """)


def test_a_slot_is_zeroed_after_it_was_copied(on_both: Callable[[str], None]) -> None:
    on_both(SLOTS + """
    s, b, s0, b0 = pools()
    call(s, b, states=[(2, 3)], zero=[2, 2])
    s0[3] = s0[2]; s0[2] = 0
    assert torch.equal(s.cpu(), s0) and torch.equal(b.cpu(), b0)
    """)


def test_the_dummy_block_is_released_not_copied(on_both: Callable[[str], None]) -> None:
    on_both(SLOTS + """
    s, b, s0, b0 = pools()
    released = call(s, b, blocks=[(3, 0), (0, 2)])
    b0[2] = b0[0]
    assert torch.equal(b.cpu(), b0) and list(released[1]) == [3, 0]
    """)


def test_nothing_to_do_is_fine_and_results_are_independent(on_both: Callable[[str], None]) -> None:
    on_both(SLOTS + """
    s, b, s0, b0 = pools()
    first = call(s, b, states=[(1, 2)])
    for empty in (np.empty(0, np.int32), np.empty((0, 2), np.int32)):
        released = engine.clone_and_zero_states_and_blocks(s, b, empty, empty, np.empty(0, np.int32))
        assert [len(r) for r in released] == [0, 0]
    assert list(first[0]) == [1], "an earlier result changed"
    wide = np.array([(1, 2), (9, 9)], dtype=np.int64)[:1]  # another dtype is converted, as pybind does
    assert list(engine.clone_and_zero_states_and_blocks(s, b, wide, empty, empty[:0].reshape(-1))[0]) == [1]
    """)


@pytest.mark.parametrize(
    "arguments",
    [
        "states=[(0, 6)]", "states=[(6, 0)]", "states=[(-1, 0)]", "states=[(0, -1)]", "blocks=[(0, 5)]", "blocks=[(5, 1)]",
        "blocks=[(-1, 0)]", "blocks=[(1, -2)]", "zero=[6]", "zero=[-1]", "states=[(0, 1), (2, 99)]", "states=[(0, 1)], zero=[7]",
        "states=[(2**31 - 1, 0)]",
    ],
)  # fmt: skip
def test_a_slot_outside_the_pool_is_refused_before_anything_moves(arguments: str, engine: Path, run: Run) -> None:
    import textwrap

    script = "import deepinfer; deepinfer.PLATFORM\nimport numpy as np\nimport torch\nfrom deepinfer._C import engine\n"
    script += textwrap.dedent(SLOTS) + textwrap.dedent(f"""
    s, b, s0, b0 = pools()
    try:
        call(s, b, {arguments})
    except IndexError as error:
        assert "is outside the pool of" in str(error), error
    else:
        raise AssertionError("accepted")
    assert torch.equal(s, s0) and torch.equal(b, b0)
    """)
    done = run(script)
    assert done.returncode == 0, done.stderr[-3000:]


def test_rows_that_are_no_pairs_are_refused(on_both: Callable[[str], None]) -> None:
    on_both(SLOTS + """
    s, b, s0, b0 = pools()
    none = np.empty(0, np.int32)
    for bad in (np.zeros(4, np.int32), np.zeros((2, 3), np.int32), np.zeros((1, 2, 2), np.int32)):
        for arguments in ((bad, none, none), (none, bad, none)):
            try:
                engine.clone_and_zero_states_and_blocks(s, b, *arguments)
            except RuntimeError as error:
                assert "expected rows of (source, destination)" in str(error)
            else:
                raise AssertionError("accepted")
    try:
        engine.clone_and_zero_states_and_blocks(s, b, none, none, np.zeros((1, 1), np.int32))
    except RuntimeError as error:
        assert "one dimension" in str(error)
    else:
        raise AssertionError("accepted")
    """)


def test_strided_pools_and_wide_rows(on_both: Callable[[str], None]) -> None:
    on_both(SLOTS + """
    device = torch.zeros(1, device="cuda").device
    base = torch.arange(4 * 3 * 10, dtype=torch.int64).to(torch.uint8).view(4, 3, 10).to(device)
    s, b = base[:, 1, :], torch.zeros(2, 1 << 16, dtype=torch.uint8).to(device)
    before = base.cpu()
    call(s, b, states=[(0, 3)], zero=[1])
    before[3, 1] = before[0, 1]; before[1, 1] = 0
    assert torch.equal(base.cpu(), before)
    """)


def test_memory_comes_from_torch_on_the_target(on_both: Callable[[str], None]) -> None:
    on_both("""
    here = torch.zeros(1, device="cuda").device
    x = cuda_utils.alloc_tensor(1000)
    assert x.device == here and x.dtype == torch.uint8 and x.shape == (1000,) and x.cpu().sum() == 0
    assert cuda_utils.alloc_tensor(0).numel() == 0
    for refused in (lambda: cuda_utils.export_ipc_tensor(0, 1), lambda: cuda_utils.import_ipc_tensor(b"x")):
        try:
            refused()
        except NotImplementedError as error:
            assert "not supported on Neuron (basic mode)" in str(error)
        else:
            raise AssertionError("accepted")
    try:
        cuda_utils.alloc_tensor(-1)
    except RuntimeError:
        pass
    else:
        raise AssertionError("accepted")
    """)


def test_too_much_memory_is_none_not_a_crash(engine: Path, run: Run) -> None:
    done = run("import deepinfer; from deepinfer._C import cuda_utils; print(cuda_utils.alloc_tensor(1 << 60))")
    assert done.returncode == 0 and "None" in done.stdout, done.stderr


def test_the_graph_timer_is_a_host_clock(on_both: Callable[[str], None]) -> None:
    on_both("""
    import time
    first, second = graph_timer.EventHandle(), graph_timer.EventHandle()
    assert first == first and first != second and hash(first) == hash(first) and first.query()
    try:
        first.elapsed_time(second)
    except RuntimeError as error:
        assert "was not recorded" in str(error)
    else:
        raise AssertionError("accepted")
    first.record(0, False)
    time.sleep(0.05)
    second.record(0, True)
    second.synchronize()
    assert 45 < first.elapsed_time(second) < 5000
    graph = object()
    handle = graph_timer.GraphHandle(graph)
    assert handle == graph_timer.GraphHandle(graph) and handle != graph_timer.GraphHandle(object())
    try:
        handle.get_event_record_nodes()
    except NotImplementedError as error:
        assert "graph capture: not supported on Neuron" in str(error)
    else:
        raise AssertionError("accepted")
    """)


def test_host_tensors_are_not_pinned(on_both: Callable[[str], None]) -> None:
    """Pinning throws on a torch without a CUDA driver; the values are upstream's own."""
    on_both("""
    from deepinfer.sampling_params import SamplingParams
    data = engine.SequenceData([1, 2, 3, 4])
    sequence = engine.SequenceMetadata("r", 7, False, data, data, None, SamplingParams(), [1], 1, 4, 0, [0], [])
    remap, queries, keys, overlap = engine.prepare_zos_inputs([sequence], [sequence], 2, 0)
    assert (remap.tolist(), queries.tolist(), keys.tolist(), overlap) == ([0, -1], [1, 1], [4, 1], True)
    assert not remap.is_pinned() and remap.device.type == "cpu"
    inputs = engine.prepare_sampler_inputs([sequence], 0)
    here = torch.zeros(1, device="cuda").device
    assert inputs.driver.kernel.logits.temperatures.device == here  # moved by C++, to the target
    """)


# ---------------------------------------------------------------- the compat header


def _flags(engine: Path, compiler: Path | None) -> subprocess.CompletedProcess[str]:
    environment = environ("cpu")
    if compiler is not None:
        environment["CXX"] = str(compiler)
    script = "import setup_neuron; print(setup_neuron.format_flags())"
    return subprocess.run(
        [sys.executable, "-c", script], cwd=engine, env=environment, capture_output=True, text=True, check=False
    )


def _compiler(tmp_path: Path, *, has_format: bool, has_fmt: bool) -> Path:
    """A compiler that accepts or rejects a source by the header it asks for; libfmt's it has from torch alone."""
    path = tmp_path / "c++"
    path.write_text(f"""#!/bin/sh
source=$(cat)
case "$source" in
*"<format>"*) exit {0 if has_format else 1} ;;
*"fmt/format.h"*) case "$*" in *torch/include*) exit {0 if has_fmt else 1} ;; esac ;;
esac
exit 1
""")
    path.chmod(0o755)
    return path


def test_a_compiler_with_format_gets_no_compat_header(engine: Path, tmp_path: Path) -> None:
    done = _flags(engine, _compiler(tmp_path, has_format=True, has_fmt=True))
    assert done.stdout == "[]\n", done.stderr


def test_a_compiler_without_format_gets_it_from_torchs_libfmt(engine: Path, tmp_path: Path) -> None:
    done = _flags(engine, _compiler(tmp_path, has_format=False, has_fmt=True))
    assert "csrc/neuron/compat" in done.stdout and "-DFMT_HEADER_ONLY" in done.stdout, done.stderr


def test_neither_says_what_to_install(engine: Path, tmp_path: Path) -> None:
    done = _flags(engine, _compiler(tmp_path, has_format=False, has_fmt=False))
    assert done.returncode != 0
    assert "has no <format>: use GCC 13 or later" in done.stderr and "apt-get install libfmt-dev" in done.stderr


def test_requirements_of_the_build(engine: Path) -> None:
    script = "import setup_neuron; print(*setup_neuron.requirements(), sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=engine, env=environ("cpu"), capture_output=True, text=True, check=True
    )
    names = {line.split("==")[0] for line in done.stdout.split()}
    assert {"numpy", "transformers", "xgrammar"} <= names and not {"torch", "tilelang", "tile-kernels"} & names


def test_an_editable_install_asks_for_neurons_requirements(engine: Path, tmp_path: Path) -> None:
    """The build back end's own metadata, as pip asks for it; compiling again would tell nothing new."""
    script = (
        f"from setuptools import build_meta; print(build_meta.prepare_metadata_for_build_editable({str(tmp_path)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=engine, env=environ("cpu"), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (metadata,) = tmp_path.glob("*.dist-info/METADATA")
    wanted = {
        line.split()[1].split("==")[0] for line in metadata.read_text().splitlines() if line.startswith("Requires-Dist")
    }
    listed = (engine / "requirements-neuron.txt").read_text().splitlines()
    assert wanted == {line.split("==")[0] for line in listed if line and not line.startswith("#")}
