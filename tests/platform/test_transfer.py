"""transfer_to_neuron: every CUDA name lands on the target. Runs on the host; PORTER_TEST_TARGET=neuron runs it on the
stand-in device (``test_transfer_on_the_device`` does so in a process of its own)."""

from __future__ import annotations

import copy
import importlib
import io
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.utils._device

from tests.platform.conftest import REPOSITORY, environ

TARGET = os.environ.get("PORTER_TEST_TARGET", "cpu")
if TARGET == "neuron":
    import tests.platform.support.stand_in_device as stand_in

REAL_DEVICE = torch.device
HERE = REAL_DEVICE("cpu") if TARGET == "cpu" else REAL_DEVICE("neuron", 0)


@pytest.fixture
def transfer(deep_cluster: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The package, installed for the target, torch put back afterwards."""
    monkeypatch.delenv("DEEPINFER_ACCELERATOR")
    module = importlib.import_module("deepinfer.neuron_ops.transfer_to_neuron")
    module.install(TARGET)
    yield module
    module.uninstall()


def fingerprint() -> dict[str, object]:
    """Identity of everything that is patched, and of its neighbours."""
    owners = (
        torch, torch.Tensor, torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.graphs, torch.cuda.streams, torch.fft,
        torch.amp.autocast_mode.autocast, torch.distributed, torch.distributed.distributed_c10d, torch.distributed.device_mesh,
        torch.serialization, torch.library.Library, torch.UntypedStorage, torch.utils._device.DeviceContext,
        torch._subclasses.functional_tensor.FunctionalTensor,
    )  # fmt: skip
    found = {f"{owner.__name__}.{name}": id(value) for owner in owners for name, value in list(vars(owner).items())}
    return {**found, "packages": list(torch.serialization._package_registry)}


# ---------------------------------------------------------------- the patch itself


def test_uninstall_puts_everything_back(deep_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEEPINFER_ACCELERATOR")
    module = importlib.import_module("deepinfer.neuron_ops.transfer_to_neuron")
    torch.zeros(1)
    before = fingerprint()
    for _ in range(2):
        module.install(TARGET)
        assert module.installed_target() == TARGET
        changed = {name for name, value in fingerprint().items() if before.get(name) != value}
        assert len(changed) > 100
        module.uninstall()
        after = fingerprint()
        assert {name for name in {*before, *after} if before.get(name) != after.get(name)} == set()
    module.uninstall()
    assert module.installed_target() is None


def test_a_second_install_does_nothing(transfer: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    before = fingerprint()
    with caplog.at_level("DEBUG"):
        transfer.install(TARGET)
    assert fingerprint() == before and not caplog.records


def test_one_line_of_summary(
    deep_cluster: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("DEEPINFER_ACCELERATOR")
    module = importlib.import_module("deepinfer.neuron_ops.transfer_to_neuron")
    with caplog.at_level("DEBUG"):
        module.install(TARGET)
    module.uninstall()
    assert len(caplog.records) == 1 and "torch.cuda names mapped onto" in caplog.text
    assert capfd.readouterr() == ("", "")


def test_another_target_is_refused_while_one_is_installed(transfer: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="installed for"):
        transfer.install("cpu" if TARGET == "neuron" else "neuron")


def test_detection_comes_before_the_first_patch(deep_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEEPINFER_ACCELERATOR")
    module = importlib.import_module("deepinfer.neuron_ops.transfer_to_neuron")
    before = fingerprint()
    with pytest.raises(ValueError, match="expected 'neuron' or 'cpu'"):
        module.install("tpu")
    if TARGET == "cpu":
        with pytest.raises(
            RuntimeError,
            match=r"has no device 'neuron'. Install torch-neuronx \d+\.\d+\.\* .*DEEPINFER_NEURON_DEVICE=cpu",
        ):
            module.install("neuron")
    assert fingerprint() == before


def test_a_patch_that_fails_undoes_those_before_it(deep_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DEEPINFER_ACCELERATOR")
    module = importlib.import_module("deepinfer.neuron_ops.transfer_to_neuron")
    collectives = importlib.import_module("deepinfer.neuron_ops.transfer_to_neuron.collectives")
    monkeypatch.setattr(collectives, "patch", lambda patcher, backend: 1 / 0)
    before = fingerprint()
    with pytest.raises(ZeroDivisionError):
        module.install(TARGET)
    assert fingerprint() == before and module.installed_target() is None


def test_a_patch_over_ours_survives_uninstall(transfer: ModuleType) -> None:
    ours = torch.load
    theirs = lambda *args, **kwargs: ours(*args, **kwargs)  # noqa: E731
    torch.load = theirs
    transfer.uninstall()
    assert torch.load is theirs
    torch.load = ours.__wrapped__


def test_install_from_many_threads_patches_once(
    deep_cluster: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("DEEPINFER_ACCELERATOR")
    module = importlib.import_module("deepinfer.neuron_ops.transfer_to_neuron")
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        module.install(TARGET)

    threads = [threading.Thread(target=work) for _ in range(8)]
    with caplog.at_level("INFO"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    module.uninstall()
    assert len(caplog.records) == 1


# ---------------------------------------------------------------- devices


@pytest.mark.parametrize("cuda", ["cuda", "cuda:0"])
def test_devices(transfer: ModuleType, cuda: str) -> None:
    assert torch.device(cuda) == HERE and torch.device("cuda", 0) == HERE and torch.device(type="cuda") == HERE
    assert torch.device(torch.device(cuda)) == HERE
    assert isinstance(torch.device(cuda), torch.device) and issubclass(REAL_DEVICE, torch.device)
    assert torch.device("cpu") == REAL_DEVICE("cpu") and torch.device("meta").type == "meta"
    assert isinstance(REAL_DEVICE("cpu"), torch.device | None) and {REAL_DEVICE: 1}[torch.device] == 1
    with pytest.raises(RuntimeError):
        torch.device("no such device")


def test_factories(transfer: ModuleType) -> None:
    x = torch.ones(3)
    made = [
        torch.empty(2, device="cuda"), torch.zeros(2, 3, device="cuda:0"), torch.ones(2, device=REAL_DEVICE("cuda")),
        torch.full((2,), 7, device="cuda"), torch.arange(5, device="cuda"), torch.tensor([1.0], device="cuda"),
        torch.as_tensor([1.0], device="cuda"), torch.eye(2, device="cuda"),
        torch.linspace(0, 1, 3, device="cuda"), torch.rand(2, device="cuda"), torch.randn(2, device="cuda"),
        torch.randint(0, 5, (2,), device="cuda"), torch.randperm(4, device="cuda"), torch.empty_like(x, device="cuda"),
        torch.zeros_like(x, device="cuda"), torch.full_like(x, 2, device="cuda"), x.new_zeros(2, device="cuda"), x.new_empty(2, device="cuda"),
        x.new_tensor([1.0], device="cuda"), torch.empty_strided((2, 2), (2, 1), device="cuda"),
    ]  # fmt: skip
    assert {tensor.device for tensor in made} == {HERE}
    assert torch.zeros(2).device == torch.zeros(2, device="cpu").device == REAL_DEVICE("cpu")
    assert torch.zeros(2, device="meta").device.type == "meta"


def test_every_function_of_torch_that_takes_a_device_is_wrapped(transfer: ModuleType) -> None:
    factories = importlib.import_module("deepinfer.neuron_ops.transfer_to_neuron.factories")
    covered = {*factories.FACTORIES, *factories.METHODS, *(f"fft_{name}" for name in factories.FFT_FACTORIES)}
    elsewhere = {
        "to",
        "pin_memory",
        "is_pinned",
        "Generator",
        "eq",
        "ne",
    }  # tensors.py, devices.py; comparisons of devices
    schemas = torch._C._jit_get_all_schemas()
    takes = {
        schema.name.removeprefix("aten::")
        for schema in schemas
        if schema.name.startswith("aten::")
        and any(str(a.type) in ("Device", "Optional[Device]") for a in schema.arguments)
    }
    public = {name for name in takes if not name.startswith("_")}
    assert public - covered - elsewhere == set()
    assert {
        name for name in public & set(factories.FACTORIES) if not hasattr(getattr(torch, name, None), "__wrapped__")
    } == set()


def test_moves(transfer: ModuleType) -> None:
    x = torch.arange(6.0).view(2, 3)
    for moved in (
        x.to("cuda"), x.to("cuda", torch.float16), x.to("cuda", non_blocking=True), x.to(device="cuda"), x.to(REAL_DEVICE("cuda", 0)),
        x.cuda(), x.cuda(0), x.cuda("cuda:0"), x.cuda(non_blocking=True), x.cuda(device=torch.device("cuda")), x.to(x.cuda()),
    ):  # fmt: skip
        assert moved.device == HERE
        assert torch.equal(moved.float().cpu(), x)
    assert x.to(torch.float16).device == REAL_DEVICE("cpu") and x.to("cpu") is x
    assert (
        x.cuda().to("cpu", non_blocking=True).device
        == x.cuda().to("cpu", torch.float32, True).device
        == REAL_DEVICE("cpu")
    )
    assert torch.equal(x.cuda().to(device="cpu", non_blocking=True), x)


def test_modules(transfer: ModuleType) -> None:
    for move in (
        lambda m: m.cuda(),
        lambda m: m.to("cuda"),
        lambda m: m.to(device=torch.device("cuda")),
        lambda m: m.to("cuda", torch.float64),
    ):
        module = move(torch.nn.Linear(2, 2))
        assert {p.device for p in module.parameters()} == {HERE}
    assert torch.nn.Linear(2, 2, device="cuda").weight.device == HERE
    assert torch.nn.Linear(2, 2, device="meta").to_empty(device="cuda").weight.device == HERE


def test_is_cuda_answers_the_engine(transfer: ModuleType) -> None:
    question = "answer = tensor.is_cuda"
    answers = {}
    for asker in (
        "deepinfer.model_executor.model_loader",
        "deep_ep.buffers",
        "transformers.modeling",
        "torch.nn.functional",
    ):
        scope = {"__name__": asker, "tensor": torch.ones(1).cuda()}
        exec(question, scope)
        answers[asker.split(".")[0]] = scope["answer"]
    engine = {"deepinfer": True, "deep_ep": True}
    others = dict.fromkeys(("transformers", "torch"), TARGET == "neuron")
    assert answers == {**engine, **others}


def test_devices_pickle_and_copy(transfer: ModuleType) -> None:
    for device in (torch.device("cuda"), REAL_DEVICE("cpu"), torch.device("meta")):
        assert pickle.loads(pickle.dumps(device)) == copy.deepcopy(device) == device
    data = pickle.dumps(torch.device("cpu"))
    transfer.uninstall()
    assert pickle.loads(data) == torch.device("cpu") and torch.device is REAL_DEVICE


def test_default_devices_and_contexts(transfer: ModuleType) -> None:
    with torch.device("cuda"):
        assert torch.ones(1).device == torch.empty(2).device == torch.arange(3).device == HERE
        assert torch.ones(1, device="cpu").device == REAL_DEVICE("cpu")
    with REAL_DEVICE("cuda"):
        assert torch.ones(1).device == HERE
    assert torch.ones(1).device == REAL_DEVICE("cpu")
    torch.set_default_device("cuda")
    try:
        assert torch.ones(1).device == HERE
    finally:
        torch.set_default_device(None)
    assert torch.get_device_module("cuda") is torch.get_device_module(REAL_DEVICE("cuda")) is torch.cuda
    assert torch.get_device_module("cpu") is torch.cpu
    assert torch.accelerator.is_available() is (TARGET == "neuron")


def test_pinned_memory_is_ordinary_memory(transfer: ModuleType) -> None:
    x = torch.empty(3, pin_memory=True)
    assert x.device == REAL_DEVICE("cpu") and not x.is_pinned()
    assert x.pin_memory() is x and not torch.zeros(2, dtype=torch.int32, pin_memory=True).is_pinned()
    x.record_stream(torch.cuda.current_stream())


def test_generators(transfer: ModuleType) -> None:
    first, second = torch.Generator(device="cuda"), torch.Generator("cuda:0")
    assert isinstance(first, torch.Generator)
    first.manual_seed(5)
    second.manual_seed(5)
    assert torch.equal(torch.rand(4, generator=first), torch.rand(4, generator=second))
    if TARGET == "cpu":
        first.manual_seed(7)
        drawn = torch.rand(4, device="cuda", generator=first)
        assert torch.equal(drawn, torch.rand(4, device="cuda", generator=torch.Generator().manual_seed(7)))

    class Derived(torch.Generator):
        pass

    assert isinstance(Derived(), torch.Generator) and Derived.__mro__[1] is type(torch.default_generator)


def test_seeds(transfer: ModuleType) -> None:
    torch.cuda.manual_seed_all(3)
    if TARGET == "cpu":
        first = torch.rand(3)
        torch.cuda.manual_seed(3)
        assert torch.equal(torch.rand(3), first)
    else:
        assert "manual_seed_all" in stand_in.CALLS
    state = torch.cuda.get_rng_state()
    first = torch.rand(3)
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(3), first)


def test_autocast(transfer: ModuleType) -> None:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.is_autocast_enabled("cuda") and torch.is_autocast_enabled(TARGET)
        assert torch.get_autocast_dtype("cuda") == torch.bfloat16
        if TARGET == "cpu":
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("cuda")
    with torch.amp.autocast(device_type="cuda", dtype=torch.bfloat16, enabled=False):
        assert not torch.is_autocast_enabled("cuda")


def test_loading(transfer: ModuleType) -> None:
    buffer = io.BytesIO()
    torch.save({"t": torch.arange(4.0)}, buffer)
    for location in ("cuda", "cuda:0", REAL_DEVICE("cuda"), {"cpu": "cuda:0"}):
        buffer.seek(0)
        loaded = torch.load(buffer, map_location=location)["t"]
        assert loaded.device == HERE and loaded.cpu().tolist() == [0, 1, 2, 3]
    buffer.seek(0)
    assert (
        torch.load(buffer)["t"].device
        == torch.load(io.BytesIO(buffer.getvalue()), "cpu")["t"].device
        == REAL_DEVICE("cpu")
    )


def test_a_checkpoint_saved_on_cuda_loads_onto_the_target(transfer: ModuleType) -> None:
    buffer = io.BytesIO()
    tag = torch.serialization.location_tag
    torch.serialization.location_tag = lambda storage: "cuda:0"
    try:
        torch.save(torch.arange(4.0), buffer)
    finally:
        torch.serialization.location_tag = tag
    buffer.seek(0)
    loaded = torch.load(buffer)
    assert loaded.device == HERE and loaded.cpu().tolist() == [0, 1, 2, 3]


def test_storages_can_be_emptied(transfer: ModuleType) -> None:
    x = torch.ones(1000, device="cuda")
    x.untyped_storage().resize_(0)
    if TARGET == "neuron":
        with pytest.raises((RuntimeError, NotImplementedError)):
            x.untyped_storage().resize_(10**6)


def test_device_memory_is_released_on_its_device(transfer: ModuleType) -> None:
    release = importlib.import_module("deepinfer.neuron_ops.device_memory").release
    x, y = torch.ones(4, device="cuda"), torch.ones(4, dtype=torch.int16, device="cuda")
    release((x, y))
    release(z := torch.ones(2, device="cuda"))
    assert [t.numel() for t in (x, y, z)] == [0, 0, 0]
    assert {t.device for t in (x, y, z)} == {HERE} and y.dtype == torch.int16


def test_in_a_compiled_graph_memory_is_left_to_the_compiler(transfer: ModuleType) -> None:
    release = importlib.import_module("deepinfer.neuron_ops.device_memory").release

    def step(x: torch.Tensor) -> torch.Tensor:
        used = x * 2
        total = used + 1
        release(used)
        return total

    x = torch.ones(4, device="cuda")
    assert torch.equal(torch.compile(step, backend="eager", fullgraph=True, dynamic=False)(x), step(x))


# ---------------------------------------------------------------- torch.cuda


def test_probes_say_that_there_is_no_cuda(transfer: ModuleType) -> None:
    assert (
        torch.cuda.is_available() is False and torch.cuda.is_initialized() is False and torch.cuda.device_count() == 0
    )
    assert torch.cuda.get_device_capability() == (0, 0) and torch.cuda.current_device() == 0


def test_events_keep_time(transfer: ModuleType) -> None:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    assert start.query() and start.synchronize() is None
    with pytest.raises(RuntimeError, match="recorded"):
        start.elapsed_time(end)
    start.record()
    sum(range(100_000))
    end.record(torch.cuda.current_stream())
    end.synchronize()
    assert 0 < start.elapsed_time(end) < 60_000
    assert torch.cuda.Event(blocking=True, interprocess=False).wait() is None
    assert isinstance(start, torch.cuda.Event)


def test_an_event_touches_the_device_when_it_is_recorded_not_before(transfer: ModuleType) -> None:
    if TARGET == "neuron":
        stand_in.CALLS.clear()
    event = torch.cuda.Event(enable_timing=True)
    assert TARGET == "cpu" or stand_in.CALLS == []
    event.record()
    assert TARGET == "cpu" or stand_in.CALLS == ["Event"]


def test_streams(transfer: ModuleType) -> None:
    stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
    assert isinstance(stream, torch.cuda.Stream)
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        event = stream.record_event()
    current.wait_event(event)
    current.synchronize()
    with torch.cuda.stream(None):
        pass
    torch.cuda.synchronize()
    torch.cuda.synchronize("cuda:0")
    assert torch.cuda.graphs.is_current_stream_capturing() is False


def test_the_current_stream_is_a_threads_own(transfer: ModuleType) -> None:
    if TARGET == "neuron":
        pytest.skip("the stand-in device has one stream")
    stream, seen = torch.cuda.Stream(), []
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() is stream
        thread = threading.Thread(target=lambda: seen.append(torch.cuda.current_stream() is stream))
        thread.start()
        thread.join()
    assert seen == [False] and torch.cuda.current_stream() is not stream


def test_sync_debug_mode_is_remembered(transfer: ModuleType) -> None:
    assert torch.cuda.get_sync_debug_mode() == 0
    torch.cuda.set_sync_debug_mode("error")
    assert torch.cuda.get_sync_debug_mode() == 2
    torch.ones(2, device="cuda").sum().item()
    torch.cuda.set_sync_debug_mode(0)
    with pytest.raises(KeyError):
        torch.cuda.set_sync_debug_mode("never")


def test_memory_figures(transfer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = [
        torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved(),
    ]  # fmt: skip
    free, total = torch.cuda.mem_get_info()
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    gib = 1 << 30
    if TARGET == "cpu":
        assert (figures, free, total) == ([0, 0, 0, 0], gib, gib)
    else:
        assert (figures, free, total) == ([gib, 2 * gib, 3 * gib, 4 * gib], 21 * gib, 24 * gib)
    assert properties.total_memory == total and properties.multi_processor_count >= 1
    monkeypatch.setenv("DEEPINFER_NEURON_MEMORY_GB", "0.5")
    assert torch.cuda.mem_get_info()[1] == gib // 2


def test_the_current_core_is_not_set_again(transfer: ModuleType) -> None:
    """Setting the current device could start the runtime before the process group does."""
    if TARGET == "neuron":
        stand_in.CALLS.clear()
    torch.cuda.set_device(torch.device("cuda:0"))
    with torch.cuda.device(0):
        pass
    with torch.cuda.device_of(torch.ones(1, device="cuda")):
        pass
    assert TARGET == "cpu" or stand_in.CALLS == []
    if TARGET == "neuron":
        torch.cuda.set_device(1)
        assert stand_in.CALLS == ["set_device"] and torch.cuda.current_device() == 1
        assert torch.zeros(1, device="cuda").device == REAL_DEVICE("neuron", 1)


def test_what_cannot_be_is_refused_with_its_reason(transfer: ModuleType) -> None:
    names = importlib.import_module("deepinfer.neuron_ops.transfer_to_neuron.cuda_names")
    for dotted, reason in names.REFUSED.items():
        owner = torch.cuda
        for part in dotted.split("."):
            owner = getattr(owner, part)
        with pytest.raises(NotImplementedError) as caught:
            owner()
        assert str(caught.value) == f"torch.cuda.{dotted}: not supported on Neuron (basic mode): {reason}"
    assert torch.cuda.CUDAGraph | None  # still a class, for annotations


def test_a_class_stays_a_class(deep_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's compiler asks isinstance of some of these names."""
    monkeypatch.delenv("DEEPINFER_ACCELERATOR")
    module = importlib.import_module("deepinfer.neuron_ops.transfer_to_neuron")
    classes = {name for name, value in vars(torch.cuda).items() if isinstance(value, type)}
    module.install(TARGET)
    try:
        assert {name for name in classes if not isinstance(getattr(torch.cuda, name), type)} == set()
    finally:
        module.uninstall()


# ---------------------------------------------------------------- threads and the compiler


def test_other_threads_are_covered(transfer: ModuleType) -> None:
    seen: list[object] = []

    def work() -> None:
        with torch.device("cuda"):
            seen.append(torch.ones(1).device)
        seen.extend([torch.zeros(1, device="cuda").device, torch.ones(1).cuda().device, torch.device("cuda")])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [HERE] * 16


def step(x: torch.Tensor) -> torch.Tensor:
    """What a decode step does with devices."""
    out = torch.zeros(x.shape, device="cuda")
    index = torch.arange(x.shape[0], device=torch.device("cuda"))
    full = torch.full((1,), 3.0, dtype=torch.float32, device="cuda:0")
    moved = torch.empty_like(x).fill_(2.0).to("cuda", non_blocking=True).cuda()
    return out + x.cuda() + index + full + moved.sum()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("compiled_before", [False, True])
def test_compiled_functions_keep_the_mapping(transfer: ModuleType, backend: str, compiled_before: bool) -> None:
    """One graph, no break, whether the compiler was loaded before the patch or after it."""
    if compiled_before:
        transfer.uninstall()
        torch.compile(lambda x: torch.zeros(2) + x, backend="eager", fullgraph=True)(torch.ones(2))
        transfer.install(TARGET)
    torch._dynamo.reset()
    x = torch.ones(3).to(HERE)
    compiled = torch.compile(step, backend=backend, fullgraph=True, dynamic=False)
    assert torch.equal(compiled(x).cpu(), step(x).cpu()) and compiled(x).device == HERE
    torch._dynamo.reset()


def test_host_calls_in_compiled_functions_still_happen(transfer: ModuleType) -> None:
    def synchronised(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch.cuda.synchronize()
        return y * 2

    torch._dynamo.reset()
    x = torch.ones(2).to(HERE)
    if TARGET == "neuron":
        stand_in.CALLS.clear()
    assert torch.compile(synchronised, backend="eager", dynamic=False)(x).cpu().tolist() == [4, 4]
    assert TARGET == "cpu" or "synchronize" in stand_in.CALLS
    torch._dynamo.reset()


def test_custom_operators_take_devices(transfer: ModuleType) -> None:
    """Schemas are inferred from annotations, which now name the stand-in class."""

    @torch.library.custom_op(f"porter_test_{TARGET}::place", mutates_args=())
    def place(x: torch.Tensor, device: torch.device) -> torch.Tensor:
        return x.to(device, copy=True)

    assert place(torch.ones(1), torch.device("cuda")).device == HERE


def test_engine_operators_for_cuda_are_registered_for_the_target(transfer: ModuleType) -> None:
    library = torch.library.Library(f"porter_keys_{TARGET}", "DEF")
    library.define("double(Tensor x) -> Tensor")
    library.define("triple(Tensor x) -> Tensor")
    scope = {"__name__": "deep_gemm.ops", "library": library}
    exec("library.impl('double', lambda x: x + x, 'CUDA')", scope)
    scope["__name__"] = "somebody.else"
    exec("library.impl('triple', lambda x: x, 'CUDA')", scope)
    operators = getattr(torch.ops, f"porter_keys_{TARGET}")
    assert operators.double(torch.ones(1).to(HERE)).cpu().item() == 2
    with pytest.raises(NotImplementedError):
        operators.triple(torch.ones(1).to(HERE))


# ---------------------------------------------------------------- on the device


@pytest.mark.skipif(TARGET == "neuron", reason="this is the child process")
def test_transfer_on_the_device() -> None:
    """All of the above with a PrivateUse1 device named neuron."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__))],
        cwd=REPOSITORY,
        env={**environ(None), "PORTER_TEST_TARGET": "neuron"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout
