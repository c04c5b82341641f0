"""Every use of CUDA in the pinned DeepInfer, found by walking its source, is mapped, refused with a reason, or explained."""

from __future__ import annotations

import ast
import importlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

OTHER_BACKENDS = ("tilelang_ops/asc/", "tilelang_ops/cuda/")  # kernels of the other platforms, never loaded on Neuron

NAMES_HANDLED_ELSEWHERE = {
    "cuda": "the module itself, patched by upstream's own test of its guards",
    "graphs.is_current_stream_capturing": "mapped under torch.cuda and where torch.cuda.graphs holds it",
}

# Calls that are given the text "cuda", or a keyword of that name: callee -> why it works.
TENSOR_METHODS = {"to": "Tensor.to is mapped", "cuda": "Tensor.cuda is mapped"}
CALLS = {
    "torch.device": "mapped",
    "torch.Generator": "mapped",
    "torch.set_default_device": "mapped",
    "symm_mem.empty": "expert load balancing, refused at start",
    "CUDAExtension": "setup.py's CUDA branch, not taken",
    # DeepInfer's own functions, which hand the device to a torch factory
    "_yarn_linear_ramp_mask": "hands it to torch.arange",
    "alloc_kv_cache": "hands it to torch.empty",
    "generate_logits": "hands it to torch factories",
    "_make_top_k": "hands it to torch factories",
    "_make_top_p": "hands it to torch factories",
    # not devices
    "lbl.startswith": "a timer's label",
    "_fmt": "a timer's label",
}
PLACES = {
    "target.type == 'cuda'": "torch.device maps first, so that the branch is for others",
    "tilelang_ops_backend = 'cuda'": "the GPU platform's own",
    "('cuda', cuda_timer)": "a timer's label",
    "'cuda' if envs.DEEPINFER_ENGRAM_FORCE_GPU_STORAGE else 'cpu'": "handed to torch factories",
    "engram_device if getattr(p, 'is_engram', False) else 'cuda'": "handed to torch factories",
    "device = 'cuda'": "handed to torch factories",
    "device: torch.device='cuda'": "a default, handed to torch factories",
    "device: str='cuda'": "a default, handed to torch factories",
    "device: str | torch.device='cuda'": "a default, handed to torch factories",
}
NCCL = {
    "distributed_backend = 'nccl'": "the GPU platform's own",
    "dist.get_backend(group) != 'nccl'": "statistics of NCCL groups: there are none",
    "('nccl', 'hccl')": "groups that need a first collective: there are none",
    "nccl_memory": "a label in a log line",
}
ATTRIBUTES = {
    "cuda": "Tensor.cuda and Module.cuda are mapped",
    "is_cuda": "mapped",
    "is_pinned": "always False",
    "pin_memory": "a no-op",
    "record_stream": "a no-op",
    "cuda_stream": "graph timer, supported on GPUs only",
}


class Uses(ast.NodeVisitor):
    """Collects (kind, text) -> places."""

    def __init__(self) -> None:
        self.found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        self.file = ""
        self._above: list[ast.AST] = []

    def add(self, kind: str, text: str, node: ast.AST) -> None:
        self.found[kind, text].append(f"{self.file}:{getattr(node, 'lineno', 0)}")

    def generic_visit(self, node: ast.AST) -> None:
        self._above.append(node)
        super().generic_visit(node)
        self._above.pop()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = dotted(node)
        if name.startswith("torch.cuda"):
            self.add("name", name.removeprefix("torch.").removeprefix("cuda.") or "cuda", node)
            return
        if name.startswith("torch.backends.cuda"):
            self.add("backend", name, node)
        if node.attr in ("cuda", "is_cuda", "is_pinned", "pin_memory", "record_stream", "cuda_stream", "get_device"):
            self.add("attribute", node.attr, node)
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.startswith("torch.cuda"):
                self.add("import", alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if (node.module or "").startswith("torch.cuda"):
            self.add("import", str(node.module), node)

    def visit_keyword(self, node: ast.keyword) -> None:
        call = self._above[-1]
        if node.arg == "pin_memory" and isinstance(call, ast.Call):
            self.add("pin", dotted(call.func), node)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if not isinstance(node.value, str) or len(node.value) > 40:
            return
        if node.value.split(":")[0] == "cuda":
            self.add(*self._place(node), node)
        elif "nccl" in node.value:
            self.add("nccl", self._place(node)[1] if "_" not in node.value else "nccl_memory", node)

    def _place(self, node: ast.AST) -> tuple[str, str]:
        for above in reversed(self._above):
            if isinstance(above, ast.Call):
                return "call", dotted(above.func)
            if isinstance(above, (ast.Compare, ast.Assign, ast.IfExp, ast.Tuple)):
                return "place", ast.unparse(above)
            if isinstance(above, ast.arguments):
                pairs = [*zip(reversed([*above.posonlyargs, *above.args]), reversed(above.defaults), strict=False)]
                pairs += [*zip(above.kwonlyargs, above.kw_defaults, strict=True)]
                argument = next(a for a, default in pairs if default is node)
                return "place", f"{ast.unparse(argument)}={ast.unparse(node)}"
        return "place", "elsewhere"


def dotted(node: ast.AST) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "?")
    return ".".join(reversed(parts))


@pytest.fixture(scope="module")
def uses(source_root: Callable[[str], Path]) -> dict[tuple[str, str], list[str]]:
    root = source_root("deepinfer")
    visitor = Uses()
    files = [path for path in sorted(root.rglob("*.py")) if not any(part in path.as_posix() for part in OTHER_BACKENDS)]
    assert len(files) > 150
    for path in files:
        visitor.file = path.relative_to(root).as_posix()
        visitor.visit(ast.parse(path.read_text()))
    return visitor.found


@pytest.fixture
def transfer(deep_cluster: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.delenv("DEEPINFER_ACCELERATOR")
    module = importlib.import_module("deepinfer.neuron_ops.transfer_to_neuron")
    module.install("cpu")
    yield module
    module.uninstall()


def texts(uses: dict[tuple[str, str], list[str]], kind: str) -> dict[str, list[str]]:
    return {text: places for (found, text), places in uses.items() if found == kind}


def test_every_torch_cuda_name_is_mapped_or_refused(
    uses: dict[tuple[str, str], list[str]], transfer: ModuleType
) -> None:
    names = importlib.import_module("deepinfer.neuron_ops.transfer_to_neuron.cuda_names")
    backend = importlib.import_module("deepinfer.neuron_ops.transfer_to_neuron.backend")
    handled = {*names.mapped(backend.make_backend("cpu")), *names.REFUSED, *NAMES_HANDLED_ELSEWHERE}
    found = texts(uses, "name")
    assert len(found) >= 25, "the walk finds too little"
    assert {name: places for name, places in found.items() if name not in handled} == {}
    assert all(names.REFUSED.values())


def test_every_mapped_name_that_is_used_works(uses: dict[tuple[str, str], list[str]], transfer: ModuleType) -> None:
    names = importlib.import_module("deepinfer.neuron_ops.transfer_to_neuron.cuda_names")
    arguments: dict[str, tuple[object, ...]] = {
        "set_device": (0,), "stream": (None,), "manual_seed_all": (0,), "set_sync_debug_mode": ("default",),
    }  # fmt: skip
    called = 0
    for name in texts(uses, "name"):
        if name in names.REFUSED or name == "cuda":
            continue
        value: object = torch.cuda
        for part in name.split("."):
            value = getattr(value, part)
        assert callable(value)
        value(*arguments.get(name, ()))
        called += 1
    assert called >= 18


def test_every_device_text_goes_somewhere_known(uses: dict[tuple[str, str], list[str]], transfer: ModuleType) -> None:
    factories = importlib.import_module("deepinfer.neuron_ops.transfer_to_neuron.factories")
    known = {f"torch.{name}" for name in factories.FACTORIES} | set(CALLS)
    unknown = {
        callee: places
        for callee, places in texts(uses, "call").items()
        if callee not in known and callee.split(".")[-1] not in TENSOR_METHODS and callee != "?"
    }
    assert unknown == {}
    assert {place: where for place, where in texts(uses, "place").items() if place not in PLACES} == {}


def test_every_nccl_text_is_explained(uses: dict[tuple[str, str], list[str]]) -> None:
    assert {text: where for text, where in texts(uses, "nccl").items() if text not in NCCL} == {}


def test_every_tensor_attribute_is_mapped(uses: dict[tuple[str, str], list[str]], transfer: ModuleType) -> None:
    found = texts(uses, "attribute")
    assert {name: where for name, where in found.items() if name not in ATTRIBUTES} == {}
    assert {"cuda", "is_cuda", "record_stream"} <= set(found)
    for name in ("cuda", "is_cuda", "is_pinned", "pin_memory", "record_stream"):
        assert name in vars(torch.Tensor)


def test_pinned_memory_is_asked_of_factories_alone(uses: dict[tuple[str, str], list[str]]) -> None:
    own = {"allocate_vocab_mask", "_allocate_vocab_mask"}  # hand it to torch.empty
    assert set(texts(uses, "pin")) <= {"torch.empty", "torch.tensor", *own}


def test_nothing_is_imported_out_of_torch_cuda(uses: dict[tuple[str, str], list[str]]) -> None:
    """A name imported before the patch would escape it."""
    assert texts(uses, "import") == {}
    assert set(texts(uses, "backend")) <= {
        "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
        "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
        "torch.backends.cuda.matmul",
        "torch.backends.cuda",
    }
