"""The command line: parse, call, print, exit code. Everything is decided elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from porter import __version__
from porter.errors import PorterError, UsageError

if TYPE_CHECKING:
    from porter.config import Config
    from porter.lock import Lock
    from porter.overrides import Overrides
    from porter.plan import Plan
    from porter.sources.progress import Progress
    from porter.upstream import Request

app = typer.Typer(
    name="porter",
    help="Reads DeepInfer and its vendor packages, emits their Neuron backend, and says exactly what changed.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class FindingFormat(StrEnum):
    """Output formats of findings."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"
    GITHUB = "github"


class DriftFormat(StrEnum):
    """Output formats of drift."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"


Project = Annotated[Path, typer.Option("--project", metavar="FOLDER", help="Folder of porter.toml, or one below it.")]
Upstream = Annotated[
    Path | None,
    typer.Option("--upstream", metavar="PATH", help="Read DeepInfer from this checkout instead of the pinned release."),
]
Vendor = Annotated[
    list[str] | None,
    typer.Option(
        "--vendor", metavar="NAME=PATH", help="Read this vendor package from a folder; may be given several times."
    ),
]
Offline = Annotated[bool, typer.Option("--offline", help="Use the cache alone, never the network.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FOLDER", help="Emit here instead of porter.toml's [output] folder.")
]
Enable = Annotated[
    list[str] | None,
    typer.Option(
        "--enable",
        metavar="FEATURE",
        help="Turn a feature on for this run (`all` for every one); may be given several times.",
    ),
]


def _version(value: bool) -> None:
    if value:
        typer.echo(f"porter {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Reads DeepInfer and its vendor packages, emits their Neuron backend, and says exactly what changed.

    Exit codes: 0 clean, 1 drift or findings, 2 usage or configuration, 3 unreadable upstream or a fault of porter's own.
    """


def _config(project: Path, enable: list[str] | None = None) -> Config:
    from porter.config import find_config, load_config

    return load_config(find_config(project.absolute())).with_features(tuple(enable or ()))


def _request(upstream: Path | None, vendor: list[str] | None, offline: bool) -> Request:
    from porter.upstream import Request

    folders: dict[str, Path] = {}
    for text in vendor or ():
        name, equals, path = text.partition("=")
        if not equals or not name or not path:
            raise UsageError(
                f"--vendor {text!r} is not of the form NAME=PATH",
                fix="write for example --vendor deep_gemm=../DeepGEMM",
            )
        folders[name] = Path(path)
    return Request(upstream, folders, offline)


def _progress() -> Progress:
    from porter.sources.progress import progress_for

    return progress_for()


@app.command(
    epilog="Examples:  porter sync   |   porter sync --upstream ../deepinfer --dry-run --diff   |   porter sync --offline --enable mtp"
)
def sync(
    project: Project = Path(),
    upstream: Upstream = None,
    vendor: Vendor = None,
    offline: Offline = False,
    out: Out = None,
    enable: Enable = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would change, write nothing.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show the differences of emitted files.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite generated files that were edited by hand.")] = False,
) -> None:
    """Read the upstream, emit the backend, write porter.lock. Only what changed is written."""
    from porter.excerpts import explain
    from porter.findings import Report
    from porter.report import findings as report
    from porter.report import status
    from porter.sync import sync as run

    config = _config(project, enable)
    result = run(
        config,
        _request(upstream, vendor, offline),
        out=out,
        dry_run=dry_run,
        force=force,
        want_texts=diff,
        progress=_progress(),
    )
    if diff:
        typer.echo(_differences(result.texts), nl=False)
    changes = result.changes
    target = (out or config.out_path).name
    if changes.any or result.lock_changed:
        verb = "would write" if dry_run else "wrote"
        typer.echo(
            f"{verb} {len(changes.created) + len(changes.changed)} files in {target}/ "
            f"({len(changes.created)} new, {len(changes.changed)} changed, {len(changes.removed)} removed)"
            + (f"; porter.lock {'would change' if dry_run else 'changed'}" if result.lock_changed else "")
        )
    else:
        typer.echo("nothing changed")
    typer.echo(status.text(result.plan), nl=False)
    found = Report.of(explain(result.plan.findings, config, lock=result.plan.lock))
    if found.findings:
        typer.echo(report.text(found), nl=False)
    raise typer.Exit(max(found.exit_code, 1 if dry_run and (changes.any or result.lock_changed) else 0))


def _differences(texts: Mapping[str, tuple[bytes, bytes]]) -> str:
    import difflib

    out: list[str] = []
    for path, (old, new) in texts.items():
        before, after = (side.decode("utf-8", "replace").splitlines(keepends=True) for side in (old, new))
        out.extend(difflib.unified_diff(before, after, f"a/{path}", f"b/{path}"))
    return "".join(line if line.endswith("\n") else line + "\n" for line in out)


@app.command(
    epilog="Examples:  porter check   |   porter check --format sarif > porter.sarif   |   porter check --upstream ../deepinfer"
)
def check(
    project: Project = Path(),
    out: Out = None,
    enable: Enable = None,
    format: Annotated[FindingFormat, typer.Option("--format", help="How to print findings.")] = FindingFormat.TEXT,
    upstream: Upstream = None,
    vendor: Vendor = None,
    offline: Offline = False,
) -> None:
    """Check that the emitted tree is current and every override fresh. Needs neither network nor upstream."""
    from porter.check import check as run
    from porter.findings import Report
    from porter.report import findings as report

    config = _config(project, enable)
    result = run(config, out=out)
    if upstream is not None or vendor:
        from porter.comparison import upstream_findings

        request = _request(upstream, vendor, offline)
        result = Report.of([*result.findings, *upstream_findings(config, request, progress=_progress())])
    typer.echo(report.FORMATS[format](result), nl=False)
    raise typer.Exit(result.exit_code)


@app.command(epilog="Examples:  porter status   |   porter status --names   |   porter status --json")
def status(
    project: Project = Path(),
    enable: Enable = None,
    names: Annotated[
        bool, typer.Option("--names", help="List every factory and every vendor name that the engine uses.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Count what is implemented, excluded, pending and stale."""
    from porter.report import status as report

    plan = _plan(_config(project, enable))[1]
    typer.echo(report.as_json(plan) if json else report.text(plan, names=names), nl=False)


def _plan(config: Config) -> tuple[Lock, Plan, Overrides]:
    from porter.lock import read_lock
    from porter.overrides import load_overrides
    from porter.plan import make_plan

    lock = read_lock(config.lock_path)
    overrides = load_overrides(config.overrides_path)
    return lock, make_plan(config, lock, overrides), overrides


@app.command(
    epilog="Examples:  porter diff --upstream ../deepinfer   |   porter diff --vendor tile_kernels=../TileKernels --format markdown"
)
def diff(
    project: Project = Path(),
    upstream: Upstream = None,
    vendor: Vendor = None,
    offline: Offline = False,
    format: Annotated[DriftFormat, typer.Option("--format", help="How to print the changes.")] = DriftFormat.TEXT,
) -> None:
    """Say what an upstream changed against porter.lock, one row a symbol. Exit 1 when there is any change."""
    from porter.comparison import upstream_changes
    from porter.report import drift as report

    config = _config(project)
    changes = upstream_changes(config, _request(upstream, vendor, offline), progress=_progress())
    typer.echo(report.FORMATS[format](changes), nl=False)
    raise typer.Exit(1 if changes else 0)


@app.command(epilog="Examples:  porter sources   |   porter sources --json --offline")
def sources(
    project: Project = Path(),
    upstream: Upstream = None,
    vendor: Vendor = None,
    offline: Offline = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show each source's name, version, digest and unpacked path, fetching what is missing."""
    from json import dumps

    from porter.sync import known_lock
    from porter.upstream import resolve_sources

    config = _config(project)
    found = resolve_sources(config, _request(upstream, vendor, offline), known_lock(config), progress=_progress())
    if json:
        rows = [
            {
                "name": name,
                "version": s.version,
                "kind": str(s.kind),
                "filename": s.filename,
                "sha256": s.sha256,
                "path": str(s.root),
            }
            for name, s in found.items()
        ]
        typer.echo(dumps({"version": 1, "sources": rows}, indent=1))
        return
    for name, source in found.items():
        typer.echo(f"{name:<13} {source.version:<20} {source.sha256[:16]}  {source.root}")


@app.command(epilog="Examples:  porter new norm_tl   |   porter new deep_gemm.fp8_einsum")
def new(
    symbol: Annotated[str, typer.Argument(help="Upstream name: an id, a public alias, or a unique last part.")],
    project: Project = Path(),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the file instead of writing it.")] = False,
) -> None:
    """Write the skeleton of an override: signature, contract, call sites and reference in its docstring."""
    from porter.pins import find_symbol
    from porter.skeleton import make_skeleton, write_skeleton

    config = _config(project)
    lock, _, overrides = _plan(config)
    skeleton = make_skeleton(config, lock, overrides, find_symbol(lock, symbol))
    if dry_run:
        typer.echo(skeleton.text, nl=False)
        return
    write_skeleton(config, lock, overrides, skeleton)
    typer.echo(
        f"wrote {skeleton.path.relative_to(config.root)}: write {skeleton.symbol.qualname} there, then run `porter sync`"
    )


@app.command(
    epilog='Examples:  porter ack norm_tl --reason "only the tiling changed"   |   porter ack --all --reason "first review"'
)
def ack(
    symbols: Annotated[list[str] | None, typer.Argument(help="Upstream names.")] = None,
    project: Project = Path(),
    reason: Annotated[str, typer.Option("--reason", help="What was reviewed.")] = "",
    all: Annotated[bool, typer.Option("--all", help="Every override that has no pin yet.")] = False,
    drop: Annotated[bool, typer.Option("--drop", help="Remove pins of names that upstream dropped.")] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print what changed upstream since the pin; write nothing.")
    ] = False,
    offline: Offline = False,
) -> None:
    """Say that an override was reviewed against upstream's body of today."""
    from porter import excerpts, pins

    config = _config(project)
    lock, plan, overrides = _plan(config)
    if bool(symbols) == all and not show:
        raise UsageError("name symbols, or pass --all", fix='porter ack SYMBOL --reason "..."')
    if drop:
        done = pins.drop(config, overrides, symbols or ())
        typer.echo(f"dropped {len(done)} pin{'s' if len(done) != 1 else ''}")
        return
    if show:
        for name in symbols or pins.stale(plan):
            typer.echo(excerpts.show(pins.find_symbol(lock, name), config, lock, overrides, offline=offline), nl=False)
        return
    chosen = pins.unpinned(plan) if all else [pins.find_symbol(lock, name) for name in symbols or ()]
    done = pins.acknowledge(config, lock, plan, overrides, chosen, reason)
    typer.echo(f"pinned {len(done)} override{'s' if len(done) != 1 else ''}")


@app.command(
    epilog="Examples:  porter verify   |   porter verify --enable all --junit report.xml   |   porter verify --select norm_tl   |   porter verify --device sim --json sim.json   |   porter verify --full"
)
def verify(
    project: Project = Path(),
    enable: Enable = None,
    select: Annotated[
        list[str] | None, typer.Option("--select", metavar="FACTORY", help="Judge these factories only.")
    ] = None,
    flavour: Annotated[str, typer.Option("--flavour", help="Platform that upstream's tests see: npu or gpu.")] = "npu",
    device: Annotated[
        str,
        typer.Option(
            "--device",
            metavar="cpu|sim|neuron",
            help="Where kernels run: a torch device, or `sim`, the simulated Neuron device, which adds strict findings and estimated costs.",
        ),
    ] = "cpu",
    operators: Annotated[
        Path | None,
        typer.Option(
            "--operators", metavar="FILE", help="With `sim`: the operators that have a device kernel in your SDK."
        ),
    ] = None,
    rates: Annotated[
        Path | None,
        typer.Option(
            "--rates", metavar="FILE", help="With `sim`: your own measurements, TOML or JSON, for the estimates."
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Upstream's own sizes, under memory and time caps.")] = False,
    jobs: Annotated[
        int | None, typer.Option("--jobs", help="Processes; by default one a processor, four at most.")
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON.")] = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write the report as JUnit XML.")
    ] = None,
    e2e: Annotated[
        bool,
        typer.Option("--e2e", help="Instead: the engine against an independent implementation. Needs `engine` too."),
    ] = False,
    offline: Offline = False,
) -> None:
    """Run upstream's own kernel tests on the emitted backend. Needs the `proof` extra."""
    if e2e:
        from porter.e2e.command import run as end_to_end

        raise typer.Exit(end_to_end(_config(project, enable), json, offline=offline, progress=_progress()))
    from porter.judging import verify as run
    from porter.verify.report import render_text, write_report

    report = run(
        _config(project, enable),
        offline=offline,
        select=tuple(select) if select else None,
        flavour=flavour,
        device=device,
        operators=operators,
        rates=rates,
        full=full,
        jobs=jobs or min(4, os.cpu_count() or 1),
        progress=_progress(),
    )
    write_report(report, json_path=json, junit_path=junit)
    typer.echo(render_text(report), nl=False)
    raise typer.Exit(report.exit_code)


@app.command(
    epilog="Examples:  porter report --html report.html   |   porter report --html report.html --results cpu.json --results sim.json   |   porter report --html report.html --upstream ../deepinfer"
)
def report(
    html: Annotated[Path, typer.Option("--html", metavar="FILE", help="Write one self-contained page here.")],
    project: Project = Path(),
    enable: Enable = None,
    results: Annotated[
        list[Path] | None,
        typer.Option(
            "--results",
            metavar="FILE",
            help="What `porter verify --json` wrote, on a torch device or with `--device sim`; one of each at most.",
        ),
    ] = None,
    upstream: Upstream = None,
    vendor: Vendor = None,
    offline: Offline = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that porter did not write.")] = False,
) -> None:
    """Write every name's state, tests, errors, device findings and costs, and the drift, as one HTML page."""
    from porter.report.api import gather
    from porter.report.html import write_page

    config = _config(project, enable)
    page = gather(config, tuple(results or ()), _request(upstream, vendor, offline), progress=_progress())
    wrote = write_page(page, html, force=force)
    typer.echo(f"wrote {html}: {len(page.rows)} names" if wrote else "nothing changed")


@app.command(
    epilog="Examples:  porter apply ../deepinfer --dry-run   |   porter apply ../deepinfer   |   porter apply ../deepinfer --revert"
)
def apply(
    checkout: Annotated[Path, typer.Argument(help="Root of a DeepInfer checkout or unpacked release.")],
    project: Project = Path(),
    out: Out = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the difference, write nothing.")] = False,
    revert: Annotated[
        bool, typer.Option("--revert", help="Undo an earlier apply: the tree is as it was, byte for byte.")
    ] = False,
) -> None:
    """Put the emitted backend and the seams into a checkout: everything or nothing."""
    from porter.seams import api

    if revert:
        paths = api.revert(checkout)
        typer.echo(f"reverted {len(paths)} files")
        return
    config = _config(project)
    from porter.judging import payload

    plan = api.plan(checkout, payload(out or config.out_path))
    if dry_run:
        typer.echo(plan.diff(), nl=False)
        raise typer.Exit(0 if plan.up_to_date else 1)
    api.apply(plan)
    typer.echo("nothing changed" if plan.up_to_date else f"applied {len(plan.changes)} files")


@app.command(epilog="Examples:  porter demo   |   porter demo --max-tokens 64 'the river'   |   porter demo --device sim")
def demo(
    prompts: Annotated[
        list[str] | None, typer.Argument(help="Texts to go on from; a few of its own by default.")
    ] = None,
    project: Project = Path(),
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Tokens to generate for each prompt.")] = 32,
    device: Annotated[str, typer.Option("--device", help="host, or sim: the simulated device.")] = "host",
    offline: Offline = False,
) -> None:
    """Run DeepInfer itself on the emitted backend, on this machine's CPU, from prompt to text. Needs the `proof` and `engine` extras."""
    from porter.demo.api import DemoOptions, render
    from porter.demo.api import demo as run
    from porter.demo.workspace import Target

    if device not in [*Target]:
        raise typer.BadParameter(f"{device}: expected host or sim", param_hint="--device")
    options = DemoOptions(
        tuple(prompts) if prompts else DemoOptions().prompts,
        max_tokens=max_tokens,
        offline=offline,
        target=Target(device),
    )
    typer.echo(render(run(_config(project), options, progress=_progress())), nl=False)


def main() -> NoReturn:
    """Entry point: errors become one message, the fix, and the exit code of their class."""
    try:
        code = app(standalone_mode=False)
    except typer.Exit as error:
        sys.exit(error.exit_code)
    except typer.Abort:
        sys.exit(130)
    except PorterError as error:
        _fail(error)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        usage = _usage(error)
        if usage is not None:
            usage()
            sys.exit(2)
        import traceback

        traceback.print_exc()
        typer.echo(
            f"porter: internal fault: {type(error).__name__}: {error}\n  fix: report it with the lines above", err=True
        )
        sys.exit(3)
    sys.exit(code if isinstance(code, int) else 0)


def _usage(error: Exception) -> Callable[[], None] | None:
    """click's own way of showing a usage error, where it is one."""
    show = getattr(error, "show", None)
    return show if callable(show) and hasattr(error, "exit_code") else None


def _fail(error: PorterError) -> NoReturn:
    typer.echo(f"porter: {error.render()}", err=True)
    if error.fix:
        typer.echo(f"  fix: {error.fix}", err=True)
    sys.exit(error.exit_code)
