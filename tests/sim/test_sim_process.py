"""What concerns a whole process: nothing crashes it, installing is checked, the tool itself does not import the device."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from tests.sim.sim_process import ROOT, run

_HEAD = "import torch\nfrom porter import sim\nsim.install(compile=False, distributed=False)\nD = 'neuron'\n"

# Each of these has no good answer on the device. It may work or raise; the process has to live on and say so.
_HARD = {
    "storage": "torch.UntypedStorage(8, device=D)[0]",
    "storage of bytes": "s = torch.UntypedStorage(8, device=D); s.fill_(1); s.tolist()",
    "typed storage": "torch.TypedStorage(4, dtype=torch.float32, device=D)",
    "storage resized": "torch.ones(3, device=D).untyped_storage().resize_(64)",
    "storage shared": "torch.ones(3, device=D).share_memory_()",
    "storage pinned": "torch.ones(3, device=D).untyped_storage().pin_memory()",
    "storage byteswap": "torch.ones(3, device=D).untyped_storage().byteswap(torch.float32)",
    "storage copied": "torch.ones(3, device=D).untyped_storage().copy_(torch.zeros(3).untyped_storage())",
    "pinned factory": "torch.empty(2, pin_memory=True)",
    "pinned on device": "torch.empty(2, pin_memory=True, device=D)",
    "dlpack": "torch.from_dlpack(torch.ones(2, device=D))",
    "dlpack out": "torch.ones(2, device=D).__dlpack__()",
    "numpy": "torch.ones(2, device=D).numpy()",
    "array": "memoryview(torch.ones(2, device=D))",
    "sparse": "torch.ones(2, 2, device=D).to_sparse()",
    "sparse made": "torch.sparse_coo_tensor([[0], [1]], [1.0], (2, 2), device=D)",
    "quantized": "torch.quantize_per_tensor(torch.ones(2, device=D), 0.1, 0, torch.quint8)",
    "nested": "torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], device=D)",
    "mkldnn": "torch.ones(2, 2, device=D).to_mkldnn()",
    "complex": "torch.view_as_real(torch.ones(2, dtype=torch.complex64, device=D).conj())",
    "complex copied": "torch.ones(2, dtype=torch.complex64, device=D).conj().imag.cpu()",
    "zero tensor": "torch._efficientzerotensor(2, device=D) + torch.ones(2, device=D)",
    "zero tensor copied": "torch._efficientzerotensor(2, device=D).cpu()",
    "zero tensor cloned": "torch._efficientzerotensor(2, device=D).clone()",
    "fft": "torch.fft.fft(torch.ones(4, device=D))",
    "cuda": "torch.ones(2, device=D).cuda()",
    "to cuda": "torch.ones(2, device=D).to('cuda')",
    "empty tensor": "torch.empty(0, device=D)[0:0].sum().item()",
    "negative strides": "torch.ones(4, device=D).flip(0)[::1]",
    "out of bounds view": "torch.ones(4, device=D).as_strided((100,), (1,))",
    "negative size": "torch.ones(4, device=D).view(-2)",
    "out of range": "torch.ones(4, device=D)[torch.tensor([9], device=D)]",
    "out of range write": "torch.ones(4, device=D).index_put_((torch.tensor([9], device=D),), torch.ones(1, device=D))",
    "float8 sum": "torch.ones(4, device=D).to(torch.float8_e4m3fn).sum()",
    "float4 sum": "torch.ones(4, dtype=torch.uint8, device=D).view(torch.float4_e2m1fn_x2).float()",
    "linalg": "torch.linalg.inv(torch.eye(3, device=D))",
    "svd": "torch.linalg.svd(torch.eye(3, device=D))",
    "graph": "torch.accelerator.Graph()",
    "generic stream": "torch.Stream(device=D).synchronize()",
    "generic event": "torch.Event(device=D).record()",
    "memory info": "torch.accelerator.get_memory_info()",
    "capability": "torch.accelerator.get_device_capability()",
    "set data": "x = torch.ones(2, device=D); x.data = torch.ones(3)",
    "set": "x = torch.ones(2, device=D); x.set_()",
    "jit": "torch.jit.script(torch.nn.Linear(2, 2).to(D))(torch.ones(1, 2, device=D))",
    "huge": "torch.empty(1 << 60, device=D)",
    "huge strided": "torch.empty_strided((1 << 30,), (1 << 31,), device=D)",
    "other device": "torch.ones(1, device='neuron:7')",
    "pickle": "import pickle; pickle.loads(pickle.dumps(torch.ones(2, device=D)))",
    "meta": "torch.ones(2, device=D).to('meta') + torch.ones(2, device='meta')",
    "meta and device": "torch.ones(2, device=D) + torch.ones(2, device='meta')",
    "double backward": "x = torch.ones(2, device=D, requires_grad=True); g, = torch.autograd.grad((x**3).sum(), x, create_graph=True); g.sum().backward()",
    "checkpoint": "from torch.utils.checkpoint import checkpoint\nx = torch.ones(2, device=D, requires_grad=True); checkpoint(lambda y: y * 2, x, use_reentrant=False).sum().backward()",
    "rnn": "torch.nn.LSTM(2, 2).to(D)(torch.ones(1, 1, 2, device=D))",
    "convolution": "torch.nn.Conv2d(1, 1, 3).to(D)(torch.ones(1, 1, 8, 8, device=D)).sum().backward()",
    "batch norm": "torch.nn.BatchNorm1d(2).to(D)(torch.ones(4, 2, device=D))",
    "func": "torch.func.jacrev(lambda y: y * y)(torch.ones(2, device=D))",
    "foreach": "torch._foreach_add_([torch.ones(2, device=D)], [torch.ones(2, device=D)])",
    "fused adam": "p = torch.nn.Parameter(torch.ones(2, device=D)); p.grad = torch.ones(2, device=D); torch.optim.AdamW([p], fused=True).step()",
    "deterministic": "torch.use_deterministic_algorithms(True); torch.empty(3, device=D); torch.ones(3, device=D).index_add_(0, torch.tensor([1], device=D), torch.ones(1, device=D))",
}


def test_nothing_crashes_the_process() -> None:
    program = _HEAD + "import json, sys\n"
    program += f"for name, source in {_HARD!r}.items():\n"
    program += "    print('start', name, flush=True)\n"
    program += "    try:\n        exec(source, {'torch': torch, 'D': D})\n        print('done', name, flush=True)\n"
    program += "    except Exception as error:\n        print('raised', name, type(error).__name__, flush=True)\n"
    program += "assert (torch.ones(2, device=D) + 1).tolist() == [2, 2]\nprint('alive')\n"
    done = run("-c", program)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and lines[-1] == "alive", (done.returncode, lines[-3:], done.stderr[-1500:])
    ended = {
        line.split(" ", 1)[1].rsplit(" ", line.startswith("raised"))[0]
        for line in lines
        if line.startswith(("done", "raised"))
    }
    assert ended == set(_HARD)


def test_fork_is_refused_after_the_start() -> None:
    program = _HEAD + (
        "import os\nx = torch.ones(1, device=D)\npid = os.fork()\n"
        "if not pid:\n"
        "    try:\n        torch.ones(1, device=D)\n        os._exit(1)\n"
        "    except RuntimeError as error:\n        os._exit(0 if 'forked' in str(error) else 2)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    assert run("-c", program).stdout.strip() == "0"


def test_another_device_is_in_the_way() -> None:
    program = (
        "import torch\ntorch.utils.rename_privateuse1_backend('other')\nfrom porter import sim\n"
        "try:\n    sim.install()\nexcept sim.SimError as error:\n    print('other' in str(error), bool(error.fix))\n"
    )
    assert run("-c", program).stdout.strip() == "True True"


@pytest.mark.parametrize(
    ("version", "said"),
    [("2.15.0", "torch 2.15"), ("2.12.1+cpu", "older than torch 2.13"), ("2.14.1", "this build of torch 2.14")],
)
def test_a_missing_internal_names_the_release(version: str, said: str) -> None:
    program = (
        f"import torch\ntorch.__version__ = {version!r}\ndel torch._C._from_dlpack\n"
        "try:\n    from porter import sim\n    sim.install()\nexcept RuntimeError as error:\n    print(type(error).__name__, error, error.fix)\n"
    )
    done = run("-c", program)
    assert done.stdout.startswith("TorchInternalError torch._C._from_dlpack"), done.stderr[-500:]
    assert said in done.stdout and "2.13 or 2.14" in done.stdout


def test_preload_installs() -> None:
    done = run("-c", "import porter.sim.preload, torch; print(torch.ones(1, device='neuron').device)")
    assert done.stdout.strip() == "neuron:0", done.stderr[-500:]


def test_installing_does_not_import_dynamo() -> None:
    program = "import sys, torch\nfrom porter import sim\nsim.install()\ntorch.ones(2, device='neuron') + 1\n"
    program += "with sim.record(): torch.ones(2, device='neuron')\nprint('torch._dynamo' in sys.modules)\n"
    assert run("-c", program).stdout.strip() == "False"


def test_the_tool_does_not_import_the_device() -> None:
    """Only the one module that runs in a test process on the device does, and nothing imports that one at its head."""
    watch = ROOT / "porter" / "verify" / "watch.py"
    for path in sorted((ROOT / "porter").rglob("*.py")):
        if "sim" in path.relative_to(ROOT / "porter").parts or path == watch:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [one.name for one in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.startswith(("porter.sim", "porter.verify.watch")) for name in names), path
            assert not (isinstance(node, ast.ImportFrom) and node.module == "porter" and "sim" in names), path


def test_the_device_needs_torch_only() -> None:
    allowed = {"torch", "porter", "__future__"}
    for path in sorted((ROOT / "porter" / "sim").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [one.name for one in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                top = name.partition(".")[0]
                assert top in allowed or top in sys.stdlib_module_names, (Path(path).name, name)
                if top == "porter":
                    assert name.startswith(("porter.sim", "porter.errors")), (Path(path).name, name)
