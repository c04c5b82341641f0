"""What the emitted tree is judged with and put into: its files as a payload, its write masks, what is left out and why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from porter.config import ENGINE, Config
from porter.errors import TreeError
from porter.lock import read_lock
from porter.matching import call_arguments
from porter.overrides import BACKEND_SURFACE, load_overrides
from porter.plan import Plan, State, make_plan
from porter.sources.progress import Progress
from porter.sync import emit
from porter.tree import read_state
from porter.upstream import Request, resolve_sources

if TYPE_CHECKING:
    from porter.verify.report import VerifyReport


def payload(out: Path) -> Mapping[str, bytes]:
    """Files of an emitted tree by relative path, without the guide.

    Raises:
        TreeError: nothing was emitted there, or a file is missing.
    """
    state = read_state(out)
    if not state.manifest.files or state.missing:
        raise TreeError("holds no complete emitted tree", path=out.name, fix="porter sync")
    return {path: (out / path).read_bytes() for path in state.manifest.files if "/" in path or not path.endswith(".md")}


def masks(plan: Plan) -> Mapping[str, Any]:
    """Write masks of the factories, in the form that ``porter.verify.masks`` documents."""
    table: dict[str, Any] = {}
    for entry in plan.entries:
        contract = entry.symbol.contract
        if entry.symbol.source != BACKEND_SURFACE or contract is None:
            continue
        kernels = []
        for kernel in contract.kernels:
            passed = call_arguments(kernel, contract.out_idx)
            kernels.append(
                {argument.name: argument.written for argument in kernel.arguments if argument.name in passed}
            )
        table[entry.symbol.qualname] = kernels[0] if len(kernels) == 1 else kernels
    return table


def left_out(plan: Plan) -> Mapping[str, str]:
    """Factories that the plan does not implement, with the reason."""
    return {
        entry.symbol.qualname: f"{entry.feature or entry.state}: {entry.reason}"
        for entry in plan.entries
        if entry.symbol.source == BACKEND_SURFACE and entry.state is not State.IMPLEMENTED
    }


def origins(plan: Plan, folder: str) -> Mapping[str, str]:
    """Path in the emitted tree to the override, in ``folder``, that its bodies come from."""
    modules = {module.path: module.override.path for module in plan.modules if module.override is not None}
    copies = {copied.path: copied.source.path for copied in plan.copies}
    return {path: f"{folder}/{source}" for path, source in sorted({**modules, **copies}.items())}


def verify(
    config: Config,
    *,
    offline: bool = False,
    select: tuple[str, ...] | None = None,
    flavour: str = "npu",
    device: str = "cpu",
    full: bool = False,
    jobs: int = 1,
    operators: Path | None = None,
    rates: Path | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Upstream's own tests on the tree that lock, overrides and features give now, emitted to a throw-away folder.

    Args:
        device: a torch device, or ``sim`` for the simulated one; ``operators`` and ``rates`` are files for it alone.

    Raises:
        PorterError: any cause named in porter.errors.
    """
    import tempfile

    from porter.verify.api import VerifyOptions, run

    lock = read_lock(config.lock_path)
    overrides = load_overrides(config.overrides_path)
    plan = make_plan(config, lock, overrides)
    source = resolve_sources(config, Request(offline=offline, only=(ENGINE,)), lock, progress=progress)[ENGINE]
    with tempfile.TemporaryDirectory(prefix="porter-verify-") as folder:
        tree = Path(folder) / "tree"
        emit(config, lock, overrides, out=tree)
        return run(
            VerifyOptions(
                upstream=source.root,
                overlay=tree,
                masks=masks(plan),
                excluded=left_out(plan),
                flavour=flavour,
                device=device,
                operators=operators,
                rates=rates,
                origins=origins(plan, config.overrides_path.relative_to(config.root).as_posix()),
                project=config.root,
                full=full,
                jobs=jobs,
                select=select,
            )
        )
