"""deep_cluster's discovery of NeuronCores, from outputs of neuron-ls and faked machines."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("deep_cluster")

OUTPUTS = Path(__file__).parent / "neuron_ls"


@pytest.fixture
def neuron(deep_cluster: None) -> ModuleType:
    return importlib.import_module("deep_cluster.hardware.neuron")


@pytest.fixture
def device(deep_cluster: None) -> ModuleType:
    return importlib.import_module("deep_cluster.hardware.device")


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Path]:
    """A root folder whose neuron-ls prints ``text`` (None: no tool), with device nodes and sysfs files."""

    def make(text: str | None = None, *, code: int = 0, nodes: int = 0, files: dict[str, str] | None = None) -> Path:
        (tmp_path / "dev").mkdir()
        for index in range(nodes):
            (tmp_path / f"dev/neuron{index}").touch()
        if text is not None:
            tool = tmp_path / "opt/aws/neuron/bin/neuron-ls"
            tool.parent.mkdir(parents=True)
            (tmp_path / "output").write_text(text)
            tool.write_text(
                f"#!/bin/sh\n[ \"$1\" = -j ] || exit 9\ncat {tmp_path}/output\necho 'driver trouble' >&2\nexit {code}\n"
            )
            tool.chmod(0o755)
        for path, content in (files or {}).items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(content)
        return tmp_path

    return make


def output(name: str) -> str:
    return (OUTPUTS / name).read_text()


@pytest.fixture(autouse=True)
def cpus(neuron: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trn2.48xlarge's CPUs: 2 nodes of 48 physical cores, two threads each."""
    by_node = {0: list(range(48)), 1: list(range(48, 96))}
    monkeypatch.setattr(neuron, "physical_core_cpus_by_numa", lambda: by_node)


# ---------------------------------------------------------------- neuron-ls


def test_trn2_48xlarge(neuron: ModuleType, device: ModuleType, machine: Callable[..., Path]) -> None:
    root = machine(output("trn2.48xlarge.json"), nodes=16)
    assert device.accelerator_kind(_root=root) == "neuron"
    assert device.physical_device_count(_root=root) == device.get_actual_num_gpus(_root=root) == 64
    assert device.num_gpus(_root=root, _environ={}) == 64
    assert device.visible_device_ids(_root=root, _environ={}) == tuple(str(i) for i in range(64))
    # chips 0-3 and 12-15 sit on node 1, chips 4-11 on node 0
    assert [device.device_numa_node(4 * chip, _root=root) for chip in range(16)] == [1] * 4 + [0] * 8 + [1] * 4
    assert device.device_numa_node(63, _root=root) == 1
    assert {chip.lnc for chip in neuron.topology(_root=root)} == {2}
    assert neuron.memory_per_core(index=17, _root=root) == 24 << 30
    assert neuron.get_bf16_tflops_limit(_root=root) == 166
    assert neuron.topology(_root=root)[0].bdf == "0000:cc:00.0"


def test_trn2_48xlarge_cpus_are_shared_evenly(neuron: ModuleType, machine: Callable[..., Path]) -> None:
    root = machine(output("trn2.48xlarge.json"), nodes=16)
    shares = [neuron.cpus_for_core(core, _root=root) for core in range(64)]
    assert all(shares) and all(set(share) <= set(range(96)) for share in shares)
    assert sorted(cpu for share in shares for cpu in share) == list(range(96))
    assert {cpu for core in range(16) for cpu in shares[core]} | {
        cpu for core in range(48, 64) for cpu in shares[core]
    } == set(range(48, 96))


def test_lnc_1_doubles_the_cores_and_halves_their_share(
    neuron: ModuleType, device: ModuleType, machine: Callable[..., Path]
) -> None:
    root = machine(output("trn2.48xlarge-lnc1.json"), nodes=16)
    assert device.physical_device_count(_root=root) == 128
    assert device.device_numa_node(127, _root=root) == 1 and device.device_numa_node(32, _root=root) == 0
    assert neuron.memory_per_core(_root=root) == 12 << 30
    assert neuron.get_bf16_tflops_limit(_root=root) == 83
    assert all(len(neuron.cpus_for_core(core, _root=root)) in (0, 1) for core in range(128))


def test_trn2_3xlarge_has_one_chip_without_numa(
    neuron: ModuleType, device: ModuleType, machine: Callable[..., Path]
) -> None:
    root = machine(output("trn2.3xlarge.json"), nodes=1)
    assert device.physical_device_count(_root=root) == 4
    assert device.device_numa_node(3, _root=root) == neuron.NO_NUMA
    with pytest.raises(IndexError, match="no neuron device at index 4"):
        device.device_numa_node(4, _root=root)


def test_older_output_is_completed_from_sysfs(
    neuron: ModuleType, device: ModuleType, machine: Callable[..., Path]
) -> None:
    """No core ids, LNC, affinity or node: ids are counted on, the node comes by PCI address."""
    files = {"sys/bus/pci/devices/0000:cc:00.0/numa_node": "1\n", "sys/bus/pci/devices/0000:b5:00.0/numa_node": "-1\n"}
    root = machine(output("older.json"), nodes=2, files=files)
    assert [chip.cores for chip in neuron.topology(_root=root)] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [device.device_numa_node(core, _root=root) for core in (0, 3, 4, 7)] == [
        1,
        1,
        neuron.NO_NUMA,
        neuron.NO_NUMA,
    ]
    assert neuron.cpus_for_core(0, _root=root) == tuple(range(48, 60))  # a quarter of node 1
    assert neuron.cpus_for_core(4, _root=root) == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: e.pop("neuron_device"), "'neuron_device'"),
        (lambda e: e.update(nc_count="4"), "'nc_count'"),
        (lambda e: e.update(nc_count=0), "not a core count"),
        (lambda e: e.update(nc_count=True), "'nc_count'"),
        (lambda e: e.update(neuroncore_ids=[0, 1]), "not 4 core ids"),
        (lambda e: e.update(neuroncore_ids="0-3"), "not 4 core ids"),
        (lambda e: e.update(neuroncore_ids=[4, 5, 6, 7]), "same core"),
        (lambda e: e.update(logical_neuroncore_config=3), "expected 1 or 2"),
    ],
)
def test_output_that_contradicts_itself_is_refused(
    neuron: ModuleType, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    data = json.loads(output("trn2.48xlarge.json"))
    change(data[0])
    with pytest.raises(ValueError, match=message):
        neuron.parse_neuron_ls(json.dumps(data))


@pytest.mark.parametrize(
    ("node", "expected"),
    [("1", 1), ("-1", -1), (0, 0), (-1, -1), ("", -1), (None, -1), ("n/a", -1), (1.5, -1), (True, -1)],
)
def test_numa_node_comes_in_many_shapes(neuron: ModuleType, node: Any, expected: int, tmp_path: Path) -> None:
    data = json.loads(output("trn2.3xlarge.json"))
    data[0]["numa_node"] = node
    assert neuron.parse_neuron_ls(json.dumps(data), _root=tmp_path)[0].numa_node == expected


@pytest.mark.parametrize(
    "text", ["", "not json", "{}", "[]", "[1]", "null", '[{"neuron_device": 0}]', "\x00\xff", "[" * 50], ids=range(9)
)
@pytest.mark.parametrize("code", [0, 1])
def test_garbage_and_failure_fall_back_to_the_driver(
    text: str, code: int, device: ModuleType, machine: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    root = machine(text, code=code, nodes=2, files={"sys/devices/virtual/neuron_device/neuron0/core_count": "8\n"})
    assert device.physical_device_count(_root=root) == 8  # 2 chips of 8 physical cores, LNC 2
    assert "falling back to sysfs" in caplog.text
    assert ("driver trouble" in caplog.text) is (code != 0)


def test_a_missing_tool_falls_back_to_the_driver(
    neuron: ModuleType, device: ModuleType, machine: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = machine(nodes=3)
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "1")
    assert device.physical_device_count(_root=root) == 24
    assert device.device_numa_node(23, _root=root) == neuron.NO_NUMA
    assert neuron.memory_per_core(_root=root) == 12 << 30


def test_a_tool_that_cannot_run_falls_back(device: ModuleType, machine: Callable[..., Path]) -> None:
    root = machine("[]", nodes=1)
    (root / "opt/aws/neuron/bin/neuron-ls").write_text("#!/nonexistent/interpreter\n")
    assert device.physical_device_count(_root=root) == 4


def test_a_machine_without_devices_has_none(
    neuron: ModuleType, device: ModuleType, machine: Callable[..., Path]
) -> None:
    root = machine()
    assert not neuron.is_available(_root=root)
    assert device.physical_device_count(_root=root) == 0
    assert device.visible_device_ids(_root=root, _environ={}) == ()


def test_a_device_that_only_torch_knows_has_defaults(
    neuron: ModuleType, device: ModuleType, machine: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A simulated device: no driver, no tool."""
    root = machine()
    assert device.device_numa_node(0, _root=root) == neuron.NO_NUMA
    assert neuron.memory_per_core(_root=root) == 24 << 30 and neuron.cpus_for_core(0, _root=root) == ()
    assert neuron.get_bf16_tflops_limit(_root=root) == 166
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "0-1")
    assert neuron.physical_device_count(_root=root) == 2


@pytest.mark.parametrize(("value", "size"), [(None, 2), ("", 2), ("1", 1), ("2", 2)])
@pytest.mark.parametrize("name", ["NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE"])
def test_logical_core_size(neuron: ModuleType, name: str, value: str | None, size: int) -> None:
    assert neuron.logical_core_size({} if value is None else {name: value}) == size


@pytest.mark.parametrize("value", ["0", "3", "two", "1.0", "-1"])
def test_logical_core_size_is_one_or_two(neuron: ModuleType, value: str) -> None:
    with pytest.raises(ValueError, match="expected 1 or 2"):
        neuron.logical_core_size({"NEURON_LOGICAL_NC_CONFIG": value})


# ---------------------------------------------------------------- visible cores


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("0", (0,)),
        ("4-7", (4, 5, 6, 7)),
        ("0,1,2", (0, 1, 2)),
        ("0-2,3,4-5", (0, 1, 2, 3, 4, 5)),
        (" 3 , 4 - 5 ", (3, 4, 5)),
        ("63", (63,)),
    ],
)
def test_visible_cores(
    neuron: ModuleType, device: ModuleType, machine: Callable[..., Path], text: str, cores: tuple[int, ...]
) -> None:
    assert neuron.parse_visible_cores(text) == cores
    root = machine(output("trn2.48xlarge.json"))
    environ = {"NEURON_RT_VISIBLE_CORES": text}
    assert device.visible_device_ids(_root=root, _environ=environ) == tuple(map(str, cores))
    assert device.visible_device_count(_root=root, _environ=environ) == len(cores)
    assert device.physical_device_id(len(cores) - 1, _root=root, _environ=environ) == str(cores[-1])
    with pytest.raises(IndexError):
        device.physical_device_id(len(cores), _root=root, _environ=environ)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3,5,6", "5 follows 3"),
        ("1,0", "0 follows 1"),
        ("0,0", "0 follows 0"),
        ("0-3,3-4", "3 follows 3"),
        ("7-4", "runs backwards"),
        ("0,,1", "'' is neither"),
        ("0,", "'' is neither"),
        ("a", "'a' is neither"),
        ("0:3", "'0:3' is neither"),
        ("-2", "'-2' is neither"),
        ("1.0", "'1.0' is neither"),
    ],
)
def test_visible_cores_must_be_increasing_and_contiguous(
    neuron: ModuleType, device: ModuleType, text: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        neuron.parse_visible_cores(text)
    assert f"NEURON_RT_VISIBLE_CORES={text!r}" in str(caught.value)
    with pytest.raises(ValueError, match=message):
        device.visible_device_ids(_root=tmp_path, _environ={"NEURON_RT_VISIBLE_CORES": text})
    with pytest.raises(ValueError, match=message):
        device.set_visible_devices(text, _root=tmp_path, _environ={})


@pytest.mark.parametrize("text", ["", "-1", " "])
def test_no_visible_core(device: ModuleType, text: str, tmp_path: Path) -> None:
    environ = {"NEURON_RT_VISIBLE_CORES": text}
    assert device.visible_device_ids(_root=tmp_path, _environ=environ) == ()
    device.set_visible_devices(text, _root=tmp_path, _environ=environ)
    assert environ == {"NEURON_RT_VISIBLE_CORES": ""}


def test_setting_and_assigning_visible_cores(device: ModuleType, machine: Callable[..., Path]) -> None:
    root = machine(output("trn2.48xlarge.json"))
    assert device.visible_device_env_name(_root=root) == "NEURON_RT_VISIBLE_CORES"
    environ: dict[str, str] = {}
    device.set_visible_devices([2, "3"], _root=root, _environ=environ)
    assert environ == {"NEURON_RT_VISIBLE_CORES": "2,3"}
    device.set_visible_devices("4-6", _root=root, _environ=environ)
    assert environ == {"NEURON_RT_VISIBLE_CORES": "4,5,6"}
    assert device.assign_visible_devices(3, 4, _root=root, _environ=environ) == ("12", "13", "14", "15")
    assert environ == {"NEURON_RT_VISIBLE_CORES": "12,13,14,15"}
    assert device.assign_visible_devices(16, 4, _root=root, _environ=environ) == ("0", "1", "2", "3")
    with pytest.raises(ValueError, match="not divisible"):
        device.assign_visible_devices(0, 5, _root=root, _environ=environ)


# ---------------------------------------------------------------- the host standing in


def test_the_host_is_one_core_or_as_many_as_asked_for(
    neuron: ModuleType, device: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPINFER_NEURON_DEVICE", "cpu")
    assert device.accelerator_kind(_root=tmp_path) == "neuron"
    assert device.physical_device_count(_root=tmp_path) == 1
    assert device.device_numa_node(0, _root=tmp_path) == neuron.NO_NUMA
    assert device.get_bf16_tflops_limit() > 0
    assert neuron.cpus_for_core(0) == ()
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "2-3")
    assert neuron.physical_device_count() == 4


@pytest.mark.parametrize("value", ["", "CPU", "gpu", "neuron:0"])
def test_an_unknown_target_is_refused(neuron: ModuleType, value: str) -> None:
    with pytest.raises(ValueError, match=r"expected 'neuron' .* or 'cpu'"):
        neuron.target({"DEEPINFER_NEURON_DEVICE": value})


def test_a_device_without_a_node_binds_nothing(deep_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    bind = importlib.import_module("deep_cluster.topology.bind")
    monkeypatch.setattr(bind, "_libnuma", lambda: pytest.fail("libnuma was asked"))
    assert bind.bind_numa(-1) == 0


def test_which_numa_goes_by_the_visible_core(
    deep_cluster: None, machine: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    bind = importlib.import_module("deep_cluster.topology.bind")
    root = machine(output("trn2.48xlarge.json"))
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "15-16")
    assert [bind.which_numa(0, _root=root), bind.which_numa(1, _root=root)] == [1, 0]


# ---------------------------------------------------------------- other platforms


@pytest.mark.parametrize("accelerator", [None, "nvidia", "ascend", ""])
@pytest.mark.parametrize(
    ("files", "kind", "variable"),
    [
        ((), "cpu", None),
        (("dev/nvidia0", "dev/nvidia1"), "nvidia", "CUDA_VISIBLE_DEVICES"),
        (("dev/davinci0", "dev/davinci_manager"), "ascend", "ASCEND_RT_VISIBLE_DEVICES"),
        (("dev/neuron0",), "cpu", None),
    ],
)
def test_without_the_users_word_discovery_is_upstreams(
    accelerator: str | None,
    files: tuple[str, ...],
    kind: str,
    variable: str | None,
    device: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source_root: Callable[[str], Path],
) -> None:
    if accelerator is None:
        monkeypatch.delenv("DEEPINFER_ACCELERATOR")
    else:
        monkeypatch.setenv("DEEPINFER_ACCELERATOR", accelerator)
    (tmp_path / "dev").mkdir()
    for file in files:
        (tmp_path / file).touch()
    expected = {"cpu": 0, "nvidia": 2, "ascend": 1}[kind]
    assert device.accelerator_kind(_root=tmp_path) == kind
    assert device.visible_device_env_name(_root=tmp_path) == variable
    assert device.physical_device_count(_root=tmp_path) == expected
    assert device.visible_device_ids(_root=tmp_path, _environ={}) == tuple(str(i) for i in range(expected))
    if variable is not None:
        environ = {variable: "1,0"}
        assert device.visible_device_ids(_root=tmp_path, _environ=environ) == ("1", "0")
        device.set_visible_devices(["3", 5], _root=tmp_path, _environ=environ)
        assert environ == {variable: "3,5"}
