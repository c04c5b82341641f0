"""Basic mode's defaults, refusals, search path and visible cores: the parts that run before torch is loaded."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from tests.platform.conftest import Run

pytestmark = pytest.mark.usefixtures("deep_cluster")


@pytest.fixture
def basic_mode(deep_cluster: None, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.delenv("DEEPINFER_ACCELERATOR")  # importing the package must not set this process's environment
    return importlib.import_module("deepinfer.neuron_ops.basic_mode")


@pytest.fixture
def visible_devices(deep_cluster: None, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.delenv("DEEPINFER_ACCELERATOR")
    return importlib.import_module("deepinfer.neuron_ops.visible_devices")


EXPECTED = {
    "DEEPINFER_ENFORCE_EAGER": "1",
    "DEEPINFER_DFLASH_ENFORCE_EAGER": "1",
    "DEEPINFER_USE_NEXTN_DECODE": "0",
    "DEEPINFER_ENABLE_MTP_VARLEN": "0",
    "DEEPINFER_ZERO_OVERHEAD_SCHEDULING": "0",
    "DEEPINFER_EXPERT_REARRANGEMENT_STEP_INTERVAL": "0",
    "DEEPINFER_REARRANGE_AFTER_PREFILL_IN_NORMAL_ENGINE": "0",
    "DEEPINFER_OVERRIDE_NUM_EXTRA_EXPERTS": "0",
    "DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE": "off",
    "DEEPINFER_BATCH_INVARIANT": "0",
    "DEEPINFER_USE_MULTIMODAL_POOL": "0",
    "DEEPINFER_ENABLE_MEMORY_TRACING": "0",
    "DEEPINFER_ENGRAM_FORCE_GPU_STORAGE": "1",
}


def test_defaults(basic_mode: ModuleType) -> None:
    environ: dict[str, str] = {}
    basic_mode.install(environ, target="cpu")
    assert environ == {**EXPECTED, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    environ = {}
    basic_mode.install(environ, target="neuron")
    assert environ == {**EXPECTED, "TORCH_NEURONX_SKIP_OP_PRECONDITIONS": "1"}


def test_every_default_is_a_variable_that_the_engine_reads(basic_mode: ModuleType) -> None:
    from deepinfer import environ as upstream

    names = {switch.variable for switch in basic_mode.SWITCHES} | set(basic_mode.DEFAULTS)
    assert names <= set(upstream._descriptors)


def test_a_users_value_stays(basic_mode: ModuleType) -> None:
    users = dict.fromkeys(EXPECTED, "mine")
    environ = dict(users)
    basic_mode.install(environ, target="cpu")
    assert {name: environ[name] for name in users} == users


def test_an_enabled_feature_has_no_default_and_no_refusal(basic_mode: ModuleType) -> None:
    environ = {"DEEPINFER_USE_NEXTN_DECODE": "5"}
    basic_mode.install(environ, target="cpu", enabled=frozenset({"mtp"}))
    assert "DEEPINFER_ENABLE_MTP_VARLEN" not in environ and environ["DEEPINFER_BATCH_INVARIANT"] == "0"
    basic_mode.refuse_excluded(environ, enabled=frozenset({"mtp"}))
    with pytest.raises(NotImplementedError):
        basic_mode.refuse_excluded(environ)


@pytest.mark.parametrize(
    ("variable", "value", "feature"),
    [
        ("DEEPINFER_ENFORCE_EAGER", "0", "graph capture"),
        ("DEEPINFER_ENFORCE_EAGER", "", "graph capture"),
        ("DEEPINFER_DFLASH_ENFORCE_EAGER", "false", "graph capture"),
        ("DEEPINFER_USE_NEXTN_DECODE", "5", "speculative decoding"),
        ("DEEPINFER_ENABLE_MTP_VARLEN", "1", "speculative decoding"),
        ("DEEPINFER_ZERO_OVERHEAD_SCHEDULING", "1", "zero-overhead scheduling"),
        ("DEEPINFER_ZERO_OVERHEAD_SCHEDULING", "yes", "zero-overhead scheduling"),
        ("DEEPINFER_EXPERT_REARRANGEMENT_STEP_INTERVAL", "100", "EPLB"),
        ("DEEPINFER_OVERRIDE_NUM_EXTRA_EXPERTS", "8", "EPLB"),
        ("DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", "compact", "YOCO"),
        ("DEEPINFER_BATCH_INVARIANT", "true", "batch-invariant"),
        ("DEEPINFER_USE_MULTIMODAL_POOL", "1", "vision"),
        ("DEEPINFER_PROFILE_TORCH_CUDA_MEMORY", "/tmp/x", "memory history"),
    ],
)
def test_an_excluded_feature_asked_for_is_refused(
    basic_mode: ModuleType, variable: str, value: str, feature: str
) -> None:
    with pytest.raises(
        NotImplementedError, match=rf"{variable}={value}: .*{feature}.*: not supported on Neuron \(basic mode\)"
    ):
        basic_mode.refuse_excluded({variable: value})


def test_all_refusals_are_listed_at_once(basic_mode: ModuleType) -> None:
    with pytest.raises(NotImplementedError) as caught:
        basic_mode.refuse_excluded({"DEEPINFER_BATCH_INVARIANT": "1", "DEEPINFER_USE_NEXTN_DECODE": "2"})
    assert len(str(caught.value).splitlines()) == 2


def test_what_leaves_a_feature_off_is_fine(basic_mode: ModuleType) -> None:
    basic_mode.refuse_excluded(EXPECTED)
    basic_mode.refuse_excluded({})
    basic_mode.refuse_excluded({"DEEPINFER_USE_NEXTN_DECODE": "00", "DEEPINFER_BATCH_INVARIANT": "False"})


def test_context_parallelism_is_refused(basic_mode: ModuleType) -> None:
    basic_mode.check_engine_arguments(SimpleNamespace(context_parallel_size=1))
    with pytest.raises(NotImplementedError, match="context_parallel_size=2: context parallelism"):
        basic_mode.check_engine_arguments(SimpleNamespace(context_parallel_size=2))


@pytest.mark.parametrize("data", [None, {}, {"image_bytes": [], "image_sizes": []}, {"image_bytes": None}])
def test_a_request_without_images_is_fine(basic_mode: ModuleType, data: dict[str, object] | None) -> None:
    basic_mode.refuse_images(data)
    basic_mode.refuse_images(None, {"multi_modal_data": data})


@pytest.mark.parametrize("data", [{"image_bytes": [b"x"]}, {"image_sizes": [(1, 2)]}, {"segment_input": object()}])
def test_a_request_with_images_is_refused(basic_mode: ModuleType, data: dict[str, object]) -> None:
    for arguments in ((data, None), (None, {"multi_modal_data": data})):
        with pytest.raises(NotImplementedError, match="vision input"):
            basic_mode.refuse_images(*arguments)


# ---------------------------------------------------------------- in the package's own import


def test_importing_deepinfer_sets_defaults_before_the_engines_own(run: Run) -> None:
    done = run("""
        import os, sys
        import deepinfer
        assert "torch" not in sys.modules, "import deepinfer loads torch"
        from deepinfer import envs
        assert (envs.DEEPINFER_USE_NEXTN_DECODE, envs.DEEPINFER_ENFORCE_EAGER, envs.DEEPINFER_MAX_BACKTRACKING_TOKENS) == (0, True, 1)
        assert os.environ["DEEPINFER_ZERO_OVERHEAD_SCHEDULING"] == "0"
        print(sys.path[0])
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("deepinfer/neuron_ops/vendor")


def test_engine_arguments_keep_basic_mode_and_refuse_what_is_left_out(run: Run) -> None:
    done = run("""
        from deepinfer import PLATFORM, envs
        from deepinfer.engine.arg_utils import EngineArgs
        EngineArgs(model="m")
        assert not envs.DEEPINFER_ZERO_OVERHEAD_SCHEDULING and not envs.DEEPINFER_USE_MULTIMODAL_POOL
        try:
            EngineArgs(model="m", context_parallel_size=2)
        except NotImplementedError as error:
            print(error)
        import os
        os.environ["DEEPINFER_USE_NEXTN_DECODE"] = "3"  # set after the import, before the engine
        try:
            EngineArgs(model="m")
        except NotImplementedError as error:
            print(error)
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("context_parallel_size=2: context parallelism")
    assert done.stdout.splitlines()[1].startswith("DEEPINFER_USE_NEXTN_DECODE=3: speculative decoding")


def test_the_platform_refuses_at_start(run: Run) -> None:
    done = run("import deepinfer; deepinfer.PLATFORM", env={"DEEPINFER_BATCH_INVARIANT": "1"})
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].startswith(
        "NotImplementedError: DEEPINFER_BATCH_INVARIANT=1: batch-invariant mode: not supported"
    )


@pytest.mark.parametrize("accelerator", [None, "nvidia", "ascend"])
def test_other_accelerators_see_neither_defaults_nor_vendor_packages(run: Run, accelerator: str | None) -> None:
    environment = {} if accelerator is None else {"DEEPINFER_ACCELERATOR": accelerator}
    done = run(
        """
        import os, sys
        before, path = dict(os.environ), list(sys.path)
        import deepinfer
        changed = {name for name in os.environ if os.environ[name] != before.get(name)}
        assert not [name for name in changed if name.startswith(("DEEPINFER_", "NEURON_", "TORCH_DEVICE", "TORCH_NEURONX"))], changed
        assert sys.path == path
        assert not [name for name in sys.modules if "neuron" in name], [name for name in sys.modules if "neuron" in name]
        print(deepinfer._so_platform_tag().split("-")[0])
        """,
        device=None,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == (accelerator or "nvidia")


def test_spawned_and_forked_workers_are_set_up_too(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text("""
import multiprocessing, os, sys

def child(queue):
    import deepinfer
    import torch
    platform = deepinfer.PLATFORM
    queue.put((repr(platform), sys.path[0], str(torch.zeros(1, device="cuda").device), os.environ["CUDA_VISIBLE_DEVICES"]))

if __name__ == "__main__":
    import deepinfer
    deepinfer.PLATFORM
    for method in ("spawn", "fork"):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=child, args=(queue,))
        process.start()
        print(*queue.get(timeout=300))
        process.join()
""")
    done = run(f"import runpy, sys; sys.argv = [{str(script)!r}]; runpy.run_path({str(script)!r}, run_name='__main__')")
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        assert line.startswith("<PlatformNeuron device=cpu ops=neuron distributed=gloo>")
        assert line.endswith("deepinfer/neuron_ops/vendor cpu 0")
    assert len(done.stdout.splitlines()) == 2


def test_the_extension_folder_of_neuron_comes_first(run: Run, applied: Path, tmp_path: Path) -> None:
    done = run("""
        import os, deepinfer
        folder = os.path.join(os.path.dirname(deepinfer.__file__), "_so", f"neuron-{os.uname().machine}")
        path = [os.path.dirname(deepinfer.__file__), folder]
        os.makedirs(folder, exist_ok=True)
        from deepinfer.neuron_ops import bootstrap
        bootstrap.start(path, folder)
        bootstrap.start(path, folder)
        assert path == [folder, os.path.dirname(deepinfer.__file__)], path
        path = ["a"]
        bootstrap.start(path, "/nonexistent")
        assert path == ["a"]
    """)
    assert done.returncode == 0, done.stderr


def test_a_vendor_package_that_was_imported_before_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "flash_attn").mkdir()
    (tmp_path / "flash_attn/__init__.py").write_text("")
    done = run(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import flash_attn; import deepinfer")
    assert done.returncode == 0
    assert "flash_attn was imported from" in done.stderr and "its Neuron drop-in is not used" in done.stderr


# ---------------------------------------------------------------- visible cores


@pytest.mark.parametrize(
    ("target", "before", "cuda", "cores"),
    [
        ("neuron", {}, "0", "0"),
        ("neuron", {"LOCAL_RANK": "3"}, "3", "3"),
        ("neuron", {"NEURON_RT_VISIBLE_CORES": "4-7"}, "4,5,6,7", "4-7"),
        ("neuron", {"CUDA_VISIBLE_DEVICES": "2,3"}, "2,3", "2,3"),
        ("neuron", {"CUDA_VISIBLE_DEVICES": "4,5", "NEURON_RT_VISIBLE_CORES": "4-5"}, "4,5", "4-5"),
        ("cpu", {}, "0", None),
        ("cpu", {"LOCAL_RANK": "3"}, "0", None),
        ("cpu", {"CUDA_VISIBLE_DEVICES": "1"}, "1", None),
        ("cpu", {"NEURON_RT_VISIBLE_CORES": "0-1"}, "0,1", "0-1"),
    ],
)
def test_the_engine_gets_integers(
    visible_devices: ModuleType, target: str, before: dict[str, str], cuda: str, cores: str | None
) -> None:
    environ = dict(before)
    visible_devices.align(environ, target=target)
    assert environ["CUDA_VISIBLE_DEVICES"] == cuda
    assert environ.get("NEURON_RT_VISIBLE_CORES") == cores
    again = dict(environ)
    visible_devices.align(again, target=target)
    assert again == environ


@pytest.mark.parametrize(
    ("before", "error", "message"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0", "NEURON_RT_VISIBLE_CORES": "1"}, RuntimeError, "must name the cores of"),
        ({"CUDA_VISIBLE_DEVICES": "0,2"}, ValueError, "2 follows 0"),
        ({"NEURON_RT_VISIBLE_CORES": "x"}, ValueError, "neither"),
    ],
)
def test_core_lists_that_cannot_be_are_refused(
    visible_devices: ModuleType, before: dict[str, str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        visible_devices.align(dict(before), target="neuron")


# ---------------------------------------------------------------- small machines


def test_a_world_of_one_meets_on_a_free_port(deep_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEEPINFER_ACCELERATOR")
    rendezvous = importlib.import_module("deepinfer.neuron_ops.rendezvous")
    first, second = rendezvous.private_address(1), rendezvous.private_address(1)
    assert first.startswith("tcp://127.0.0.1:") and first != second
    assert rendezvous.private_address(2) is None
    monkeypatch.setenv("MASTER_PORT", "1234")
    assert rendezvous.private_address(1) is None


def test_cpu_binding_stays_inside_what_is_allowed(deep_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEEPINFER_ACCELERATOR")
    binding = importlib.import_module("deepinfer.neuron_ops.cpu_binding")
    bound: list[list[int]] = []
    monkeypatch.setattr(binding, "set_cpu_affinity", bound.append)
    monkeypatch.setattr(binding.os, "sched_getaffinity", lambda pid: {4, 5, 6, 9})
    wanted: Callable[[int], tuple[int, ...]] = {0: (3, 4, 5), 1: (7, 8), 2: ()}.__getitem__
    monkeypatch.setattr(binding.neuron, "cpus_for_core", wanted)
    for core in range(3):
        binding.bind_worker(core)
    assert bound == [[4, 5]]
    assert binding.helper_cpus(0, 1) == [4] and binding.helper_cpus(1, 4) == []


def test_our_files_compile_without_a_warning() -> None:
    folder = Path(__file__).resolve().parents[2] / "overrides" / "engine"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for path in folder.rglob("*.py"):
            compile(path.read_text(), str(path), "exec")
