"""What ``porter verify --e2e`` runs."""

from __future__ import annotations

import sys
from pathlib import Path

from porter.config import Config
from porter.e2e import api
from porter.sources.progress import Progress


def run(config: Config, json: Path | None, *, offline: bool, progress: Progress) -> int:
    """Compare, print the report, write it to ``json`` if given; returns the exit code."""
    report = api.verify(config, offline=offline, progress=progress)
    if json is not None:
        api.write(report, json)
    sys.stdout.write(api.render(report))
    return report.exit_code
