"""`porter check`: is the emitted tree what lock, overrides, templates and configuration say, and is every override fresh?

Needs neither the network nor the upstream. A run whose inputs are byte for byte those of an earlier run answers from
the cache; every byte that the answer depends on is read and hashed first.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from porter import __version__
from porter.codec import from_json, to_json
from porter.config import Config
from porter.errors import LockError
from porter.findings import Finding, Report
from porter.inputs import declaration_digests, inputs_digest, override_digests
from porter.lock import Lock, black_version, read_lock
from porter.overrides import Overrides, load_overrides
from porter.plan import Plan, make_plan
from porter.tree import TreeState, read_state, sha256, write_atomic

_SYNC = "porter sync"


def check(config: Config, *, out: Path | None = None, cache: Path | None = None) -> Report:
    """All findings of the project as it stands.

    Raises:
        LockError: there is no lock, or it cannot be read. OverrideError: an override cannot be read.
    """
    target = out or config.out_path
    lock_path = config.lock_for(out)
    if not lock_path.exists():
        raise LockError("there is no lock yet", path=lock_path.name, fix=_SYNC)
    lock_text = lock_path.read_text(encoding="utf-8", errors="surrogateescape")
    digests = override_digests(config.overrides_path)
    inputs = inputs_digest(config, lock_text, digests)
    state = read_state(target)
    key = _key(inputs, state, config.out if out is None else str(out.name))
    stored = _load(cache, key)
    if stored is not None:
        return _explained(stored, config, None, cache)
    lock = read_lock(lock_path)
    overrides = load_overrides(config.overrides_path)
    plan = make_plan(config, lock, overrides)
    report = Report.of(
        [
            *plan.findings,
            *lock_findings(config, lock),
            *declaration_findings(config, lock, digests),
            *tree_findings(plan, overrides, state, inputs, target),
            *rule_findings(plan, overrides),
        ]
    )
    _store(cache, key, report)
    return _explained(report, config, lock, cache)


def _explained(report: Report, config: Config, lock: Lock | None, cache: Path | None) -> Report:
    if not any(finding.code == "PT021" for finding in report.findings):
        return report
    from porter.excerpts import explain

    return Report(explain(report.findings, config, lock=lock, cache=cache))


def _key(inputs: str, state: TreeState, where: str) -> str:
    rows = [
        __version__,
        _own_code(),
        inputs,
        where,
        state.manifest.inputs,
        str(state.interrupted),
        state.manifest_error,
        *state.missing,
        "|",
        *state.edited,
    ]
    rows += [f"{path}:{digest}" for path, digest in sorted(state.manifest.files.items())]
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def _own_code() -> str:
    """Changes with any of porter's own files: a verdict is kept by the code that gave it, not by its version alone."""
    folder = Path(__file__).parent
    rows = []
    for path in sorted([*folder.glob("*.py"), *folder.glob("rules/*.py")]):
        found = path.stat()
        rows.append(f"{path.name}:{found.st_size}:{found.st_mtime_ns}")
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def lock_findings(config: Config, lock: Lock) -> Iterator[Finding]:
    """Is the lock that of this porter, and of porter.toml's pins?"""
    for what, found, expected in (("porter", lock.tool, __version__), ("black", lock.black, black_version())):
        if found != expected:
            yield Finding(
                "PT030",
                f"the lock was written with {what} {found}, this is {what} {expected}",
                path=config.lock_path.name,
                expected=f"{what} {expected}",
                found=f"{what} {found}",
                fix=_SYNC,
            )
    for name, requirement in config.sources.items():
        locked = lock.source(name)
        if locked is None or locked.requirement != requirement:
            yield Finding(
                "PT031",
                f"{name}: porter.toml asks for {requirement}, the lock holds {locked.requirement if locked else 'nothing'}",
                path=config.file,
                line=config.line_of(requirement),
                expected=requirement,
                found=locked.requirement if locked else "nothing",
                fix=_SYNC,
            )


def declaration_findings(config: Config, lock: Lock, digests: Mapping[str, str]) -> Iterator[Finding]:
    """Was the lock written with the declarations of today?"""
    found = declaration_digests(digests)
    for path in sorted(found.keys() | lock.declarations.keys()):
        if found.get(path) != lock.declarations.get(path):
            yield Finding(
                "PT032",
                f"{config.overrides}/{path} changed since the upstream was read",
                path=f"{config.overrides}/{path}",
                expected=f"sha256 {lock.declarations[path][:12]}…" if path in lock.declarations else "no file",
                found=f"sha256 {found[path][:12]}…" if path in found else "no file",
                fix=_SYNC,
            )


def tree_findings(plan: Plan, overrides: Overrides, state: TreeState, inputs: str, out: Path) -> Iterator[Finding]:
    """Is the emitted tree what the inputs give?"""
    if state.manifest_error:
        yield Finding(
            "PT003",
            f"the manifest {state.manifest_error}",
            path=f"{out.name}/.porter/manifest.json",
            fix="porter sync --force",
        )
    if state.interrupted:
        yield Finding("PT001", "a sync was cut short; the emitted tree is between two states", path=out.name, fix=_SYNC)
    for path in state.missing:
        yield Finding(
            "PT002",
            f"{path} is gone",
            path=f"{out.name}/{path}",
            expected="the file that porter emitted",
            found="no file",
            fix=_SYNC,
        )
    for path in state.edited:
        yield Finding(
            "PT003",
            f"{path} was changed by hand",
            path=f"{out.name}/{path}",
            line=1,
            expected=f"sha256 {state.manifest.files[path][:12]}…",
            found="other bytes",
            fix="move the edit to overrides/, then porter sync --force",
        )
    if state.manifest.inputs == inputs:
        return
    from porter.render.output import render

    files = render(plan, overrides.folder)
    wanted = {path: sha256(data) for path, data in files.items()}
    for path, digest in sorted(wanted.items()):
        if path in state.missing or path in state.edited:
            continue
        found = state.manifest.files.get(path)
        if found is None and not (out / path).is_file():
            yield Finding(
                "PT004",
                f"{path} is not emitted yet",
                path=f"{out.name}/{path}",
                expected="an emitted file",
                found="no file",
                fix=_SYNC,
            )
        elif found != digest:
            yield Finding(
                "PT004",
                f"{path} is not what lock, overrides and templates give now",
                path=f"{out.name}/{path}",
                line=1,
                expected=f"sha256 {digest[:12]}…",
                found=f"sha256 {found[:12]}…" if found else "a file that porter does not own",
                fix=_SYNC,
            )
    for path in sorted(set(state.manifest.files) - set(wanted) - set(state.missing)):
        yield Finding(
            "PT005",
            f"{path} is no longer emitted",
            path=f"{out.name}/{path}",
            expected="no file",
            found="an old one",
            fix=_SYNC,
        )


def rule_findings(plan: Plan, overrides: Overrides) -> Iterator[Finding]:
    """The kernel rules on every override that is emitted as a kernel."""
    from porter.rules.engine import RuleContext, check_file

    written = written_arguments(plan)
    for file in overrides.files:
        head = file.path.partition("/")[0]
        if not file.path.endswith(".py") or head not in ("tilelang_ops", "vendor", "shared"):
            continue
        context = RuleContext(written=written.get(file.path, {}))
        for row in check_file(f"{overrides.folder}/{file.path}", file.data, context):
            yield Finding(
                row.code, row.message, path=row.path, line=row.line, expected=row.expected, found=row.found, fix=row.fix
            )


def written_arguments(plan: Plan) -> Mapping[str, Mapping[str, frozenset[str]]]:
    """Per override file, per factory: the kernel arguments that upstream may write."""
    table: dict[str, dict[str, frozenset[str]]] = {}
    for entry in plan.entries:
        if entry.override and entry.symbol.contract is not None:
            names = {
                argument.name
                for kernel in entry.symbol.contract.kernels
                for argument in kernel.arguments
                if argument.written
            }
            table.setdefault(entry.override, {})[entry.symbol.qualname] = frozenset(names)
    return table


def _load(cache: Path | None, key: str) -> Report | None:
    path = _path(cache, key)
    try:
        return Report(from_json(json.loads(path.read_bytes()), tuple[Finding, ...]))
    except (OSError, ValueError):
        return None


def _store(cache: Path | None, key: str, report: Report) -> None:
    try:
        write_atomic(_path(cache, key), json.dumps(to_json(report.findings)).encode())
    except OSError:
        # A cache that cannot be written only costs time.
        return


def _path(cache: Path | None, key: str) -> Path:
    from porter.sources.cache import default_cache

    return (cache or default_cache()) / "check" / f"{key[:32]}.json"
