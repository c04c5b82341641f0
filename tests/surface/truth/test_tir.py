"""Static answers about written arguments against TileLang's own elaboration, for every factory of both backends.

TileLang elaborates each factory in a process of its own (``tir_truth.py``), with several argument sets so that its flags
are seen on and off. A static answer is "may write": joined over the sets, it has to be TileLang's answer exactly. Where an
argument holds addresses neither side can tell; the static answer then has to be "unknowable" and nothing else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from tilelang_tree import Tree

from porter.surface.model import Contract
from porter.surface.tilelang_access import access_of, is_foreign

pytestmark = pytest.mark.truth

SCRIPT = Path(__file__).with_name("tir_truth.py")
BACKENDS = ("asc", "cuda")
# Classes of the language that are no operations, and what has to be described by its own argument.
NO_OPERATIONS = {
    "Any", "AnyDType", "BufferLoad", "Call", "CallEffectKind", "CommReducer", "FloatImm", "IntImm", "IterVar", "JITFunc", "Let", "PrimExpr",
    "PrimFunc", "ProducerLoad", "Ptr", "Reduce", "Ref", "Shuffle", "SizeVar", "StringImm", "TCGEN05DescriptorParams",
    "TensorCoreIntrinEmitterSM120", "TensorCoreIntrinEmitterWithLadderTransform", "WGMMADescriptorParams", "access_ptr", "simd",
}  # fmt: skip
# They write through pointers that they are given as numbers: an argument of theirs is reported, never believed to be read only.
REPORTED = {"mma_fill", "mma_store"}


@dataclass(frozen=True)
class Truth:
    """What TileLang says, and the static contracts of the same factories."""

    factories: Mapping[str, Mapping[str, Any]]
    operations: tuple[str, ...]
    contracts: Mapping[str, Contract]


@pytest.fixture(scope="module")
def truths(source_root: Callable[[str], Path]) -> dict[str, Truth]:
    deepinfer, tile_kernels = source_root("deepinfer"), source_root("tile_kernels")
    running = {
        backend: subprocess.Popen(
            [sys.executable, str(SCRIPT), backend, str(deepinfer), str(tile_kernels)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for backend in BACKENDS
    }
    engine = Tree.folder(deepinfer / "deepinfer/model_executor/layers/tilelang_ops")
    vendor = Tree.folder(tile_kernels / "tile_kernels")
    contracts = {
        f"{module.removeprefix('tilelang_ops.')}.{name}": contract for module, name, _, contract in engine.contracts()
    }
    contracts |= {f"{module}.{name}": contract for module, name, _, contract in vendor.contracts()}
    found = {}
    for backend, process in running.items():
        told, errors = process.communicate(timeout=1200)
        assert process.returncode == 0, errors[-3000:]
        answer = json.loads(told)
        found[backend] = Truth(answer["factories"], tuple(answer["operations"]), contracts)
    return found


def factories(truths: Mapping[str, Truth], *, engine: bool) -> dict[str, tuple[Mapping[str, Any], Contract]]:
    """Factory to TileLang's answer and the static contract, of DeepInfer or of TileKernels."""
    return {
        name: (row, truth.contracts[name])
        for truth in truths.values()
        for name, row in truth.factories.items()
        if name.startswith(BACKENDS) == engine
    }


def static(contract: Contract) -> dict[str, bool | None]:
    """The static answer for every tensor, kernels of several branches joined."""
    found: dict[str, set[bool | None]] = {}
    for kernel in contract.kernels:
        for argument in (*kernel.arguments, *kernel.outputs):
            if argument.spec.form != "scalar":
                found.setdefault(argument.name, set()).add(argument.written)
    return {name: True if True in answers else None if None in answers else False for name, answers in found.items()}


def disagreements(rows: Mapping[str, tuple[Mapping[str, Any], Contract]]) -> dict[str, str]:
    found = {}
    for name, (row, contract) in rows.items():
        addresses = {
            argument.name
            for kernel in contract.kernels
            for argument in kernel.arguments
            if (argument.spec.dtype or "").endswith(".ptr")
        }
        ours = static(contract)
        theirs = {
            argument: None if argument in addresses else seen["written"] for argument, seen in row["arguments"].items()
        }
        if ours != theirs:
            found[name] = f"static {ours}, elaborated {theirs}"
    return found


def test_every_factory_is_elaborated(truths: Mapping[str, Truth]) -> None:
    engine, vendor = factories(truths, engine=True), factories(truths, engine=False)
    public = [name for name in engine if not name.rpartition(".")[2].startswith("_")]
    assert sum(name.startswith("asc.") for name in public) == 42
    assert sum(name.startswith("cuda.") for name in public) == 43
    assert len(vendor) == 92
    rows = {**engine, **vendor}
    assert [name for name, (row, _) in rows.items() if row["sets"] == 0] == []
    assert {name: row["failed"] for name, (row, _) in rows.items() if row["failed"]} == {}
    assert sum(row["sets"] for row, _ in rows.values()) > 400


def test_nothing_that_is_written_is_missed(truths: Mapping[str, Truth]) -> None:
    rows = {**factories(truths, engine=True), **factories(truths, engine=False)}
    missed = {
        f"{name}: {argument}"
        for name, (row, contract) in rows.items()
        for argument, seen in row["arguments"].items()
        if seen["written"] and static(contract)[argument] is not True
    }
    assert missed == set()


@pytest.mark.parametrize("backend", BACKENDS)
def test_written_arguments_of_deepinfer(truths: Mapping[str, Truth], backend: str) -> None:
    rows = factories({backend: truths[backend]}, engine=True)
    assert disagreements(rows) == {}


def test_written_arguments_of_tile_kernels(truths: Mapping[str, Truth]) -> None:
    rows = factories(truths, engine=False)
    assert disagreements(rows) == {}
    unknowable = {name.rpartition(".")[2] for name, (_, contract) in rows.items() if None in static(contract).values()}
    assert len(rows) - len(unknowable) == 88
    assert unknowable == {
        "mhc_multilayer_recompute_asc",
        "mhc_multilayer_recompute_cuda",
        "get_batched_transpose_weight_sf_kernel_asc",
        "get_batched_transpose_weight_sf_kernel_cuda",
    }


def test_arguments_stand_in_the_real_order(truths: Mapping[str, Truth]) -> None:
    for name, (row, contract) in {**factories(truths, engine=True), **factories(truths, engine=False)}.items():
        if len(contract.kernels) == 1:
            assert list(static(contract)) == row["order"], name


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_operation_of_the_language_is_known(truths: Mapping[str, Truth], backend: str) -> None:
    unknown = {name for name in truths[backend].operations if access_of(name) is None and not is_foreign(name)}
    assert unknown - NO_OPERATIONS == REPORTED
