"""AWS Neuron discovery: one device is one logical NeuronCore.

Where the facts come from, best first: ``neuron-ls -j``, then the driver's sysfs folder, then the device nodes.
A logical NeuronCore is one physical core (LNC 1) or two (LNC 2, the default on Trainium2 and Trainium3).
Neither torch nor the Neuron runtime is imported or initialised here.

Which accelerator is used is the user's word, not a probe: ``DEEPINFER_ACCELERATOR=neuron`` selects this module, and
``DEEPINFER_NEURON_DEVICE`` says what stands behind it, ``neuron`` (the default) or ``cpu`` (the host plays the
NeuronCore, no hardware needed).
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from deep_cluster.hardware.cpu import physical_core_cpus_by_numa

logger = logging.getLogger(__name__)

Target = Literal["neuron", "cpu"]

ACCELERATOR_ENV = "DEEPINFER_ACCELERATOR"
TARGET_ENV = "DEEPINFER_NEURON_DEVICE"
VISIBLE_CORES_ENV = "NEURON_RT_VISIBLE_CORES"
LNC_ENVS = ("NEURON_LOGICAL_NC_CONFIG", "NEURON_RT_VIRTUAL_CORE_SIZE")

NO_NUMA = -1
"""The NUMA node of a device that has none, or whose node nobody tells."""

_GIB = 1 << 30
_PHYSICAL_CORES_PER_CHIP = 8
_HBM_PER_PHYSICAL_CORE = 12 * _GIB
_DEFAULT_LNC = 2
# Dense BF16 of a Trainium2 chip in TFLOPS, shared evenly by its cores.
_BF16_TFLOPS_PER_CHIP = 667
_NEURON_LS_TIMEOUT_S = 60
_NEURON_LS_PATHS = ("/opt/aws/neuron/bin/neuron-ls", "/usr/local/bin/neuron-ls")
_DEVICE_NODE = re.compile(r"^neuron(\d+)$")
_SHORT_BDF = re.compile(r"^[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]$")


@dataclass(frozen=True)
class Chip:
    """One Neuron device of the driver.

    ``cores`` are node-wide logical core ids, ``cpus`` the logical CPUs next to the chip (empty where unknown),
    ``memory_bytes`` the HBM of the whole chip (None where unknown), ``bdf`` its PCI address with domain.
    """

    index: int
    cores: tuple[int, ...]
    lnc: int
    numa_node: int = NO_NUMA
    cpus: tuple[int, ...] = ()
    memory_bytes: int | None = None
    bdf: str | None = None


def is_selected(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the user asked for Neuron (``DEEPINFER_ACCELERATOR=neuron``)."""
    return (os.environ if environ is None else environ).get(ACCELERATOR_ENV) == "neuron"


def target(environ: Mapping[str, str] | None = None) -> Target:
    """What stands behind the name Neuron. Raises ValueError for anything but ``neuron`` and ``cpu``."""
    value = (os.environ if environ is None else environ).get(TARGET_ENV, "neuron")
    if value == "neuron":
        return "neuron"
    if value == "cpu":
        return "cpu"
    raise ValueError(f"{TARGET_ENV}={value!r}: expected 'neuron' (a NeuronCore) or 'cpu' (the host stands in for one)")


# ---------------------------------------------------------------- visible cores


def parse_visible_cores(text: str) -> tuple[int, ...]:
    """Core ids that a ``NEURON_RT_VISIBLE_CORES`` text names, e.g. ``"0-3,4"`` -> (0, 1, 2, 3, 4).

    Raises ValueError unless the ids are whole, increasing and contiguous, as the Neuron runtime demands.
    """
    ids: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if match is None:
            raise ValueError(f"{VISIBLE_CORES_ENV}={text!r}: {part!r} is neither a core id nor a range such as 0-3")
        first = int(match.group(1))
        last = first if match.group(2) is None else int(match.group(2))
        if last < first:
            raise ValueError(f"{VISIBLE_CORES_ENV}={text!r}: the range {part.strip()!r} runs backwards")
        ids.extend(range(first, last + 1))
    _require_contiguous(ids, text)
    return tuple(ids)


def format_visible_cores(wanted: str | Iterable[int | str]) -> str:
    """The comma list to put into ``NEURON_RT_VISIBLE_CORES``; ``""`` stands for no core. Raises ValueError."""
    text = wanted if isinstance(wanted, str) else ",".join(str(item) for item in wanted)
    if text.strip() in {"", "-1"}:
        return ""
    return ",".join(str(core) for core in parse_visible_cores(text))


def visible_device_ids(value: str | None, *, _root: Path = Path("/")) -> tuple[str, ...]:
    """Core ids as text: those named by ``value``, or every core of the node where it is None. Raises ValueError."""
    if value is None and target() == "cpu":
        return tuple(str(index) for index in range(physical_device_count(_root=_root)))
    if value is None:
        return tuple(str(core) for chip in topology(_root=_root) for core in chip.cores)
    if value.strip() in {"", "-1"}:
        return ()
    return tuple(str(core) for core in parse_visible_cores(value))


def _require_contiguous(ids: Sequence[int], text: str) -> None:
    for before, after in itertools.pairwise(ids):
        if after != before + 1:
            raise ValueError(
                f"{VISIBLE_CORES_ENV}={text!r}: the Neuron runtime takes increasing, contiguous cores only, "
                f"but {after} follows {before}"
            )


# ---------------------------------------------------------------- topology


def parse_neuron_ls(text: str, *, default_lnc: int = _DEFAULT_LNC, _root: Path = Path("/")) -> tuple[Chip, ...]:
    """Chips named by the output of ``neuron-ls -j``, by index.

    ``nc_count`` and ``neuroncore_ids`` count logical cores. Older tools leave out the ids, the LNC, the affinity and
    the NUMA node (a string where it exists): ids are then counted on, the node is read from sysfs by PCI address.
    Raises ValueError where the text is not such an array.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"neuron-ls: not JSON ({error})") from error
    if not isinstance(data, list) or not data:
        raise ValueError("neuron-ls: expected a JSON array with one object a chip")
    chips: list[Chip] = []
    next_core = 0
    for entry in sorted(data, key=lambda item: _number(item, "neuron_device")):
        count = _number(entry, "nc_count")
        if count < 1:
            raise ValueError(f"neuron-ls: nc_count {count} of chip {entry['neuron_device']} is not a core count")
        cores = entry.get("neuroncore_ids")
        if cores is None:
            cores = list(range(next_core, next_core + count))
        if not isinstance(cores, list) or len(cores) != count or not all(_is_int(core) for core in cores):
            raise ValueError(f"neuron-ls: neuroncore_ids of chip {entry['neuron_device']} are not {count} core ids")
        next_core = max(cores) + 1
        lnc = _number(entry, "logical_neuroncore_config") if "logical_neuroncore_config" in entry else default_lnc
        _require_lnc(lnc, "neuron-ls: logical_neuroncore_config")
        bdf = _full_bdf(entry.get("bdf"))
        node = _node(entry.get("numa_node"))
        if node == NO_NUMA:
            node = _pci_numa_node(bdf, _root=_root)
        affinity = entry.get("cpu_affinity")
        memory = entry.get("memory_size")
        chips.append(
            Chip(
                index=entry["neuron_device"],
                cores=tuple(sorted(cores)),
                lnc=lnc,
                numa_node=node,
                cpus=_parse_cpu_list(affinity) if isinstance(affinity, str) else (),
                memory_bytes=memory if _is_int(memory) and memory > 0 else None,
                bdf=bdf,
            )
        )
    _require_distinct(chips)
    return tuple(chips)


def logical_core_size(environ: Mapping[str, str] | None = None) -> int:
    """Physical cores in a logical one (LNC) where no tool says it: 1 or 2. Raises ValueError for anything else."""
    env = os.environ if environ is None else environ
    for name in LNC_ENVS:
        value = env.get(name)
        if value:
            if not value.isdigit():
                raise ValueError(f"{name}={value!r}: expected 1 or 2")
            _require_lnc(int(value), name)
            return int(value)
    return _DEFAULT_LNC


@functools.cache
def topology(*, _root: Path = Path("/")) -> tuple[Chip, ...]:
    """Chips of this node. What ``neuron-ls`` cannot tell is taken from sysfs, then from /dev/neuron*."""
    text = _neuron_ls(_root=_root)
    if text is not None:
        try:
            return parse_neuron_ls(text, default_lnc=logical_core_size(), _root=_root)
        except ValueError as error:
            logger.warning("%s; falling back to sysfs", error)
    return _driver_chips(_root=_root)


def is_available(*, _root: Path = Path("/")) -> bool:
    """Whether the driver shows a Neuron device node."""
    return bool(_device_indices(_root=_root))


def physical_device_count(*, _root: Path = Path("/")) -> int:
    """Logical NeuronCores of the node.

    Where the host stands in, and for a device that only torch knows (a simulated one), as many as
    ``NEURON_RT_VISIBLE_CORES`` asks for; without it one on the host, none otherwise.
    """
    on_host = target() == "cpu"
    chips = () if on_host else topology(_root=_root)
    if chips:
        return sum(len(chip.cores) for chip in chips)
    value = os.environ.get(VISIBLE_CORES_ENV, "").strip()
    return parse_visible_cores(value)[-1] + 1 if value not in {"", "-1"} else int(on_host)


def device_numa_node(index: int, *, _root: Path = Path("/")) -> int:
    """NUMA node of logical core ``index``; NO_NUMA where it has none. Nodes are not monotone in the core id."""
    if target() == "cpu" or not topology(_root=_root):  # the host, or a device that only torch knows: a simulated one
        return NO_NUMA
    return _chip_of(index, _root=_root).numa_node


def memory_per_core(*, index: int = 0, _root: Path = Path("/")) -> int:
    """Bytes of HBM that logical core ``index`` owns: its share of the chip, 24 GiB at LNC 2 where nobody tells."""
    if not topology(_root=_root):
        return _HBM_PER_PHYSICAL_CORE * logical_core_size()
    chip = _chip_of(index, _root=_root)
    if chip.memory_bytes is not None:
        return chip.memory_bytes // len(chip.cores)
    return _HBM_PER_PHYSICAL_CORE * chip.lnc


def get_bf16_tflops_limit(*, _root: Path = Path("/")) -> int:
    """Peak dense BF16 TFLOPS of one logical core (a Trainium2 chip's figure shared by its cores)."""
    lnc = _DEFAULT_LNC if target() == "cpu" else next((chip.lnc for chip in topology(_root=_root)), _DEFAULT_LNC)
    return _BF16_TFLOPS_PER_CHIP * lnc // _PHYSICAL_CORES_PER_CHIP


def cpus_for_core(index: int, *, _root: Path = Path("/")) -> tuple[int, ...]:
    """CPUs for the process that drives logical core ``index``: its even share of the CPUs next to its chip.

    Cores whose chips list the same CPUs share them; one CPU per physical core is preferred. Empty where nothing is
    known, and where the host stands in for the device (its CPUs are the device: binding would only slow it down).
    """
    if target() == "cpu" or not topology(_root=_root):
        return ()
    chip = _chip_of(index, _root=_root)
    near = _near_cpus(chip)
    if not near:
        return ()
    sharing = [core for other in topology(_root=_root) if _near_cpus(other) == near for core in other.cores]
    rank, ranks = sorted(sharing).index(index), len(sharing)
    if len(near) < ranks:
        return (near[rank % len(near)],)
    return near[rank * len(near) // ranks : (rank + 1) * len(near) // ranks]


# ---------------------------------------------------------------- reading the machine


def _path(root: Path, absolute: str) -> Path:
    return root / absolute.lstrip("/")


def _chip_of(index: int, *, _root: Path) -> Chip:
    for chip in topology(_root=_root):
        if index in chip.cores:
            return chip
    raise IndexError(f"no neuron device at index {index}")


def _near_cpus(chip: Chip) -> tuple[int, ...]:
    by_node = _cpus_by_node()
    if not chip.cpus:
        return tuple(by_node.get(chip.numa_node, ()))
    physical = {cpu for cpus in by_node.values() for cpu in cpus}
    return tuple(cpu for cpu in chip.cpus if cpu in physical) or chip.cpus


def _cpus_by_node() -> Mapping[int, list[int]]:
    try:
        return physical_core_cpus_by_numa()
    except (OSError, subprocess.SubprocessError):
        return {}


def _neuron_ls(*, _root: Path) -> str | None:
    """What ``neuron-ls -j`` prints, or None where the tool is missing or fails."""
    on_path = shutil.which("neuron-ls") if _root == Path("/") else None
    candidates = [on_path] if on_path else [str(_path(_root, path)) for path in _NEURON_LS_PATHS]
    tool = next((path for path in candidates if os.access(path, os.X_OK)), None)
    if tool is None:
        return None
    try:
        done = subprocess.run(
            [tool, "-j"],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_NEURON_LS_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("neuron-ls: %s; falling back to sysfs", error)
        return None
    if done.returncode != 0:
        reason = (done.stderr or done.stdout).strip().splitlines()
        logger.warning(
            "neuron-ls: exit code %s%s; falling back to sysfs", done.returncode, f" ({reason[-1]})" if reason else ""
        )
        return None
    return done.stdout


def _driver_chips(*, _root: Path) -> tuple[Chip, ...]:
    lnc = logical_core_size()
    chips: list[Chip] = []
    next_core = 0
    for index in _device_indices(_root=_root):
        physical = _read_int(_path(_root, f"/sys/devices/virtual/neuron_device/neuron{index}/core_count"))
        count = max((physical or _PHYSICAL_CORES_PER_CHIP) // lnc, 1)
        chips.append(Chip(index=index, cores=tuple(range(next_core, next_core + count)), lnc=lnc))
        next_core += count
    return tuple(chips)


def _device_indices(*, _root: Path) -> tuple[int, ...]:
    folder = _path(_root, "/dev")
    if not folder.is_dir():
        return ()
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError as error:
        raise OSError(f"cannot enumerate {folder}: {error}") from error
    return tuple(sorted(int(match.group(1)) for name in names if (match := _DEVICE_NODE.match(name)) is not None))


def _pci_numa_node(bdf: str | None, *, _root: Path) -> int:
    if bdf is None:
        return NO_NUMA
    value = _read_int(_path(_root, f"/sys/bus/pci/devices/{bdf}/numa_node"))
    return NO_NUMA if value is None or value < 0 else value


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text().strip(), 0)
    except (OSError, ValueError):
        return None


# ---------------------------------------------------------------- reading neuron-ls


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(entry: Any, key: str) -> int:
    value = entry.get(key) if isinstance(entry, dict) else None
    if not _is_int(value) or value < 0:
        raise ValueError(f"neuron-ls: expected a number for {key!r} in every chip, found {value!r}")
    return int(value)


def _node(value: object) -> int:
    """``numa_node`` is a string where it is there at all, and "-1" where the machine has no NUMA."""
    if isinstance(value, str) and re.fullmatch(r"\d+", value.strip()):
        return int(value)
    if _is_int(value) and isinstance(value, int) and value >= 0:
        return value
    return NO_NUMA


def _full_bdf(value: object) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    return f"0000:{value}" if _SHORT_BDF.match(value) else value


def _parse_cpu_list(text: str) -> tuple[int, ...]:
    cpus: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if match is None:
            return ()
        cpus.update(range(int(match.group(1)), int(match.group(2) or match.group(1)) + 1))
    return tuple(sorted(cpus))


def _require_lnc(value: int, name: str) -> None:
    if value not in (1, 2):
        raise ValueError(f"{name}={value}: expected 1 or 2")


def _require_distinct(chips: Sequence[Chip]) -> None:
    cores = [core for chip in chips for core in chip.cores]
    if len(set(cores)) != len(cores):
        raise ValueError("neuron-ls: two chips name the same core")
