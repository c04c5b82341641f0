"""A whole little upstream on disk, every construct made up here, and a project over it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

OPS = "deepinfer/model_executor/layers/tilelang_ops"

GATHER = '''
import tilelang
import tilelang.language as T

SCALE = 2


def _rows(n: int) -> int:
    return n * SCALE


@tilelang.jit(out_idx=None, pass_configs={"a": True})
def pick_tl(D: int, dtype: str = "bfloat16"):
    """Picks rows.

    Kernel args:
        x: [n, D] contiguous
        y: [m, D] written
    """
    n = T.dynamic("n")
    m = T.dynamic("m")

    @T.prim_func
    def _pick(x: T.Tensor((n, D), dtype), index: T.Tensor((m,), T.int32), y: T.Tensor((m, D), dtype)):
        with T.Kernel(_rows(m)) as row:
            T.copy(x[index[row], 0], y[row, 0])

    return _pick


@tilelang.jit
def drop_tl(width: int):
    n = T.dynamic("n")

    @T.prim_func
    def _drop(x: T.Tensor((n, width), T.float32)):
        with T.Kernel(n) as row:
            x[row, 0] = 0.0

    return _drop
'''

UPSTREAM: Mapping[str, str] = {
    "deepinfer/PKG-INFO": "Metadata-Version: 2.1\nName: deepinfer\nVersion: 0.9\n",
    "deepinfer/deepinfer/__init__.py": "",
    "deepinfer/deepinfer/engine.py": "import deep_gemm\nfrom deep_select import topk\n\n\ndef run(a):\n    return deep_gemm.mul(topk(a))\n",
    "deepinfer/deepinfer/model_executor/__init__.py": "",
    "deepinfer/deepinfer/model_executor/layers/__init__.py": "",
    f"deepinfer/{OPS}/__init__.py": "",
    f"deepinfer/{OPS}/ops.py": "",
    f"deepinfer/{OPS}/gather.py": """
from deepinfer.model_executor.layers.tilelang_ops import ops


def pick(x, index, y):
    kernel = ops.pick_tl(x.shape[1])
    kernel(x, index, y)


def pick_ref(x, index):
    return x[index]
""",
    f"deepinfer/{OPS}/asc/__init__.py": "",
    f"deepinfer/{OPS}/asc/gather.py": GATHER,
    f"deepinfer/{OPS}/cuda/__init__.py": "",
    f"deepinfer/{OPS}/cuda/gather.py": GATHER,
    "deep_gemm/deep_gemm/__init__.py": 'from .core import Plan, mul\n\n__version__ = "1.5"\nLIMIT = 4 * 8\n',
    "deep_gemm/deep_gemm/core.py": """
import enum


class Plan(enum.Enum):
    FAST = 1
    SLOW = 2


class Engine:
    limit: int = 3

    def __init__(self, size: int, *, eager: bool = True) -> None:
        self.size = size

    def start(self, flag=None):
        return self.size + helper(flag)

    @property
    def ready(self) -> bool:
        return True


def helper(flag):
    return 1 if flag else 2


def mul(a, b=None, /, *, scale: float = 1.0):
    return a * scale + helper(b)
""",
    "deep_select/deep_select/__init__.py": "from .interface import topk\n",
    "deep_select/deep_select/interface.py": "def topk(x, k: int = 1, *rest, **more):\n    return x\n",
    "deep_ep/deep_ep/__init__.py": '__all__ = ["send"]\n\n\ndef send(x):\n    return x\n',
    "flash_mla/flash_mla/__init__.py": "def attend(q, kv, scale=None):\n    return q\n",
    "tile_kernels/tile_kernels/__init__.py": "from . import quant\n",
    "tile_kernels/tile_kernels/quant.py": "def cast(x, fmt):\n    return x\n",
    "tilelang/tilelang/__init__.py": "from .language import *\n",
    "tilelang/tilelang/language.py": "def dynamic(name):\n    return name\n",
}

PICK_OVERRIDE = '''
"""Pure-torch bodies of upstream's ``tilelang_ops.asc.gather``."""

from __future__ import annotations

import torch

UNUSED = 1


def _clamped(index: torch.Tensor, rows: int) -> torch.Tensor:
    return index.clamp(0, rows - 1)


def pick_tl(D: int, dtype: str = "bfloat16"):
    """Rows by index."""

    def kernel(x: torch.Tensor, index: torch.Tensor, y: torch.Tensor) -> None:
        y.copy_(x.index_select(0, _clamped(index, x.shape[0])))

    return kernel
'''

CONFIG = """
[sources]
deepinfer = "../upstream/deepinfer"
deep_ep = "../upstream/deep_ep"
deep_gemm = "../upstream/deep_gemm"
deep_select = "../upstream/deep_select"
flash_mla = "../upstream/flash_mla"
tile_kernels = "../upstream/tile_kernels"
tilelang = "../upstream/tilelang"

[features.drops]
reason = "nothing is dropped in basic mode"
symbols = ["tilelang_ops.asc.gather.drop_tl"]

[features.vendor]
reason = "no vendor kernels yet"
symbols = ["deep_ep.*", "flash_mla.*", "tile_kernels.*", "tilelang.*", "deep_select.*"]

[[pending]]
reason = "next month"
symbols = ["deep_gemm.mul", "deep_gemm.core.Engine", "deep_gemm.core.helper"]
"""


@dataclass(frozen=True)
class Result:
    """Exit code and output of one command."""

    code: int
    out: str
    err: str


class Mini:
    """A project over the little upstream, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.upstream = folder / "upstream"
        self.project = folder / "project"
        self.write_upstream(UPSTREAM)
        self.write("porter.toml", CONFIG)
        self.write("overrides/tilelang_ops/gather.py", PICK_OVERRIDE)

    def write_upstream(self, files: Mapping[str, str]) -> None:
        for path, text in files.items():
            target = self.upstream / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(textwrap.dedent(text).lstrip("\n"))

    def write(self, path: str, text: str) -> Path:
        target = self.project / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(textwrap.dedent(text).lstrip("\n"))
        return target

    def read(self, path: str) -> str:
        return (self.project / path).read_text()

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace text in a project file (or, from ``upstream/``, an upstream one); it must be there."""
        target = (self.folder if path.startswith("upstream/") else self.project) / path
        text = target.read_text()
        assert old in text, f"{old!r} is not in {path}"
        target.write_text(text.replace(old, new))

    def run(self, *arguments: str) -> Result:
        """Run the command line in this process."""
        from unittest.mock import patch

        from porter import cli

        runner = CliRunner()
        command = [
            arguments[0],
            *(() if arguments[0].startswith("-") else ("--project", str(self.project))),
            *arguments[1:],
        ]
        with runner.isolation() as streams, patch("sys.argv", ["porter", *command]):
            try:
                cli.main()
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else 0
            out, err = (stream.getvalue().decode() for stream in streams[:2])
        return Result(code, out, err)

    def tree(self) -> dict[str, bytes]:
        """Bytes of every file of the project."""
        return {
            path.relative_to(self.project).as_posix(): path.read_bytes()
            for path in sorted(self.project.rglob("*"))
            if path.is_file()
        }
