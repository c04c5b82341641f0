"""``porter verify --e2e``: the engine on the emitted backend against an implementation that somebody else wrote."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from porter.tree import write_atomic
from porter.config import Config
from porter.demo import checkpoint
from porter.demo.workspace import prepare
from porter.e2e import comparison, environment
from porter.e2e.comparison import Module, Tokens
from porter.e2e.engine import RecordedEngine
from porter.e2e.oracle import EXACT, PLAIN, RELEASED, Oracle
from porter.e2e.prompts import LONGEST, prompt, prompts
from porter.sources.progress import Progress, QuietProgress

ENGINE_ARGUMENTS: Mapping[str, Any] = {"max_model_len": 1024, "max_num_seqs": 16, "max_num_batched_tokens": 1024}
GREEDY: Mapping[str, Any] = {"temperature": 0, "ignore_eos": True}

CLEAR_SHARE = 0.95
"""Share of positions whose margin must be above the noise, in the released format."""


@dataclass(frozen=True)
class Fault:
    """What the comparison says of an oracle that is wrong on purpose. ``module``: the first one that differs."""

    name: str
    module: str | None
    tokens: int
    positions: int

    @property
    def noticed(self) -> bool:
        """Some module differs, or a token does where the margin is clear."""
        return self.module is not None


@dataclass(frozen=True)
class Report:
    """What was compared.

    ``plain``: against the architecture alone, in float32. ``released``: with the format's roundings of activations and
    caches. ``recorded``: for each recorded sequence its prompt's and whole length and every module, fed the engine's
    own input. ``faults``: the same comparison with a wrong oracle.
    """

    prompts: int
    steps: int
    plain: Tokens
    released: Tokens
    recorded: Sequence[tuple[int, int, Sequence[Module]]]
    faults: Sequence[Fault]

    @property
    def diverging(self) -> Module | None:
        """First module that differs, if any does."""
        return next((module for _, _, modules in self.recorded for module in modules if not module.passed), None)

    @property
    def passed(self) -> bool:
        """Every clear token is the oracle's, every module within limits, enough is clear and every fault noticed."""
        return (
            self.plain.passed
            and self.released.passed
            and self.released.clear >= CLEAR_SHARE
            and self.diverging is None
            and all(fault.noticed for fault in self.faults)
        )

    @property
    def exit_code(self) -> int:
        """0 where everything agrees."""
        return 0 if self.passed else 1


def verify(
    config: Config,
    *,
    count: int = 64,
    steps: int = 32,
    recorded: Sequence[int] = (150, LONGEST),
    faults: bool = True,
    root: Path | None = None,
    offline: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Generate ``steps`` greedy tokens for ``count`` prompts, record sequences of the ``recorded`` prompt lengths, and
    compare all of it with the oracle, live.

    Raises:
        OracleError: the oracle cannot be installed or stops.
        PorterError: as porter.demo.workspace.prepare and porter.demo.engine.Engine.
    """
    shown = progress or QuietProgress()
    python = environment.prepare(progress=progress)
    workspace = prepare(config, root=root, offline=offline, progress=progress)
    with tempfile.TemporaryDirectory(prefix="porter-e2e-") as temporary:
        folder = Path(temporary)
        model = checkpoint.write(folder / "model")
        given = prompts(count)
        rows = [folder / f"{length}.safetensors" for length in recorded]
        with shown.task(f"generating {count} x {steps} tokens"):
            with RecordedEngine(workspace, model, ENGINE_ARGUMENTS) as engine:
                answer = engine.generate(given, {**GREEDY, "max_tokens": steps})
                traced = [
                    [*start, *engine.record(start, {**GREEDY, "max_tokens": steps}, file).tokens]
                    for start, file in zip(map(prompt, recorded), rows, strict=True)
                ]
        chosen = [completion.tokens for completion in answer.completions]
        whole = [[*start, *tokens][:-1] for start, tokens in zip(given, chosen, strict=True)]
        first = [len(start) - 1 for start in given]
        with Oracle(python, model) as oracle:
            with shown.task("comparing tokens with the independent implementation"):
                plain, exact, released = (oracle.logits(form, whole, first) for form in (PLAIN, EXACT, RELEASED))
            with shown.task("comparing modules, each with the engine's own input"):
                compared = [
                    (length, len(tokens) - 1, comparison.modules(_load(file), oracle.modules(RELEASED, tokens[:-1], file)))
                    for length, tokens, file in zip(recorded, traced, rows, strict=True)
                ]
            found: list[Fault] = []
            for name in oracle.faults if faults else ():
                with shown.task(f"oracle broken on purpose: {name}"):
                    found.append(_fault(oracle, name, traced, rows, whole, first, released))
        return Report(
            count,
            steps,
            comparison.tokens(chosen, plain, exact),
            comparison.tokens(chosen, released, exact),
            tuple(compared),
            tuple(found),
        )


def _fault(
    oracle: Oracle,
    name: str,
    traced: Sequence[Sequence[int]],
    rows: Sequence[Path],
    whole: Sequence[Sequence[int]],
    first: Sequence[int],
    right: Sequence[Any],
) -> Fault:
    """Modules of every recorded sequence until one differs; tokens of the first sixteen prompts."""
    module = None
    for tokens, file in zip(traced, rows, strict=True):
        compared = comparison.modules(_load(file), oracle.modules(RELEASED, tokens[:-1], file, name))
        module = next((each.name for each in compared if not each.passed), None)
        if module is not None:
            break
    wrong = oracle.logits(RELEASED, whole[:16], first[:16], name)
    changed = sum(int((a.argmax(1) != b.argmax(1)).sum()) for a, b in zip(wrong, right, strict=False))
    return Fault(name, module, changed, sum(len(each) for each in wrong))


def _load(file: Path) -> Mapping[str, Any]:
    from safetensors.torch import load_file

    return load_file(file)


def render(report: Report) -> str:
    """The report as text: tokens of both formats with every disagreement, modules, and the faults."""
    lines = [f"{report.prompts} prompts x {report.steps} greedy tokens against the independent implementation"]
    for name, tokens in (("architecture, float32", report.plain), ("released format", report.released)):
        lines.append(
            f"{name}: {tokens.positions - len(tokens.disagreements)} of {tokens.positions} tokens equal; "
            f"margin above the noise ({tokens.noise:.3f}) at {tokens.clear:.1%}"
        )
        for each in sorted(tokens.disagreements, key=lambda each: -each.margin):
            word = "within" if each.margin <= tokens.noise else "ABOVE"
            lines.append(
                f"  prompt {each.prompt}, token {each.step}: engine {each.engine}, oracle {each.oracle}, "
                f"margin {each.margin:.3f}, {word} the noise"
            )
    for start, length, modules in report.recorded:
        same = sum(module.same * module.rows for module in modules) / sum(module.rows for module in modules)
        worst = max(modules, key=lambda module: module.worst)
        lines.append(
            f"modules, prompt of {start} and {length - start} decoded tokens: {len(modules)} compared, "
            f"{same:.2%} of rows the same, the worst {worst.worst:.4f} ({worst.name}, token {worst.at})"
        )
    if (module := report.diverging) is not None:
        lines.append(f"FIRST MODULE THAT DIVERGES: {module.name}: {module.same:.1%} the same, worst {module.worst:.3f}")
    for fault in report.faults:
        where = f"first differs in {fault.module}" if fault.noticed else "NOT NOTICED"
        lines.append(f"wrong on purpose: {fault.name}: {where}; {fault.tokens} of {fault.positions} tokens change")
    lines.append("passed" if report.passed else "FAILED")
    return "\n".join(lines) + "\n"


def write(report: Report, path: Path) -> None:
    """The report as JSON."""
    content = {"passed": report.passed, **asdict(report)}
    write_atomic(path, (json.dumps(content, indent=1) + "\n").encode())
