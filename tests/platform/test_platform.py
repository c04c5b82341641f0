"""The platform object: what it says, when it is chosen, and what it refuses."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.platform.conftest import Run


def test_the_host_as_neuron(run: Run) -> None:
    done = run("""
        import deepinfer
        print(deepinfer.PLATFORM)
        import torch
        p = deepinfer.PLATFORM
        assert (p.is_npu, p.is_neuron, p.is_gpu) == (True, True, False)
        assert (p.tilelang_ops_backend, p.distributed_backend, p.fp8_sf_type) == ("neuron", "gloo", torch.int16)
        assert p.get_distributed_options() is None
        assert p.pin_host_memory(torch.ones(1)) is None and p.unpin_host_memory(0) is None
        import os
        assert [int(x) for x in os.environ["CUDA_VISIBLE_DEVICES"].split(",")] == [0]
        from deepinfer.neuron_ops import transfer_to_neuron
        assert transfer_to_neuron.installed_target() == "cpu"
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "<PlatformNeuron device=cpu ops=neuron distributed=gloo>\n"
    assert done.stderr == ""


def test_a_core_as_neuron(run: Run) -> None:
    done = run(
        """
        import deepinfer, torch
        p = deepinfer.PLATFORM
        assert (p.is_npu, p.is_neuron, p.is_gpu, p.distributed_backend) == (True, True, False, "neuron")
        assert torch.zeros(1, device="cuda").device == torch.device("neuron:0")
        import os
        assert os.environ["NEURON_RT_VISIBLE_CORES"] == os.environ["CUDA_VISIBLE_DEVICES"] == "3"
        print(p)
        """,
        device="neuron",
        env={"LOCAL_RANK": "3"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "<PlatformNeuron device=neuron ops=neuron distributed=neuron>\n"


@pytest.mark.parametrize(
    ("stand_in", "message"),
    [
        (None, r"torch has no device 'neuron'. Install torch-neuronx 2\.\d+\.\* .* or set DEEPINFER_NEURON_DEVICE=cpu"),
        ({"__init__.py": ""}, r"is the XLA package \(2\.9 or older\).*Uninstall it and install torch-neuronx 2\.\d+"),
        (
            {"__init__.py": "", "neuron_dynamo_backend.py": ""},
            r"installed but not loaded.*TORCH_DEVICE_BACKEND_AUTOLOAD=0",
        ),
    ],
    ids=["absent", "old-xla", "not-loaded"],
)
def test_a_device_without_torch_neuronx_says_what_to_install(
    stand_in: dict[str, str] | None, message: str, run: Run, tmp_path: Path
) -> None:
    for name, text in (stand_in or {}).items():
        (tmp_path / "torch_neuronx").mkdir(exist_ok=True)
        (tmp_path / "torch_neuronx" / name).write_text(text)
    script = f"import sys; sys.path.append({str(tmp_path)!r}); import deepinfer; deepinfer.PLATFORM"
    done = run(script, device="neuron", stand_in=False)
    assert done.returncode != 0
    import re

    assert re.search(message, done.stderr.splitlines()[-1]), done.stderr


def test_an_unknown_target_is_refused(run: Run) -> None:
    done = run("import deepinfer", device="tpu")
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].startswith("ValueError: DEEPINFER_NEURON_DEVICE='tpu': expected 'neuron'")


@pytest.mark.parametrize("accelerator", [None, "nvidia", "ascend", ""])
@pytest.mark.parametrize(
    ("files", "choice"),
    [
        ((), "PlatformGPU"),
        (("dev/nvidia0",), "PlatformGPU"),
        (("proc/driver/nvidia/gpus/0000:01:00.0/information",), "PlatformGPU"),
        (("dev/davinci_manager",), "PlatformNPU"),
        (("dev/davinci3", "dev/nvidia0"), "PlatformNPU"),
        (("dev/neuron0",), "PlatformGPU"),
    ],
)
def test_other_platforms_are_chosen_as_before(
    accelerator: str | None,
    files: tuple[str, ...],
    choice: str,
    deep_cluster: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By device files alone, whatever DEEPINFER_ACCELERATOR says: that is upstream's rule."""
    if accelerator is None:
        monkeypatch.delenv("DEEPINFER_ACCELERATOR")
    else:
        monkeypatch.setenv("DEEPINFER_ACCELERATOR", accelerator)
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    device = importlib.import_module("deep_cluster.hardware.device")
    monkeypatch.setitem(device.accelerator_kind.__wrapped__.__kwdefaults__, "_root", tmp_path)
    platform = importlib.import_module("deepinfer.platform")
    for name in ("PlatformGPU", "PlatformNPU"):
        monkeypatch.setattr(platform, name, type(name, (platform.Platform,), {"enum": getattr(platform, name).enum}))
    chosen = platform.get_platform()
    assert type(chosen).__name__ == choice
    assert chosen.is_neuron is False and (chosen.is_npu, chosen.is_gpu) == (
        choice == "PlatformNPU",
        choice == "PlatformGPU",
    )


def test_the_gpu_platform_is_untouched(run: Run) -> None:
    """On a machine without a card upstream falls back to its GPU platform, and torch is as it was."""
    done = run(
        """
        import torch
        before = (torch.zeros, torch.device, torch.cuda.Event, torch.load)
        import deepinfer
        p = deepinfer.PLATFORM
        assert (torch.zeros, torch.device, torch.cuda.Event, torch.load) == before
        assert torch.device("cuda").type == "cuda"
        print(type(p).__name__, p.tilelang_ops_backend, p.is_neuron)
        """,
        device=None,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "PlatformGPU cuda False\n"


def test_torch_threads_fit_the_machine(run: Run) -> None:
    done = run("""
        import os, torch
        os.environ.pop("OMP_NUM_THREADS")
        import deepinfer; deepinfer.PLATFORM
        from deepinfer.neuron_ops import host_threads
        host_threads.configure()
        host_threads.configure()
        expected = min(8, len(os.sched_getaffinity(0)))
        assert torch.get_num_threads() == torch.get_num_interop_threads() == expected
        os.environ["OMP_NUM_THREADS"] = "1"
        torch.set_num_threads(1)
        host_threads.configure()
        assert torch.get_num_threads() == 1
        import concurrent.futures
        torch.jit.fork(lambda x: x + 1, torch.ones(1))  # inter-operator work has begun
        host_threads.MAX_THREADS = 1
        host_threads.configure()
    """)
    assert done.returncode == 0, done.stderr
