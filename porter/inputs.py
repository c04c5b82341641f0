"""Digest of everything that the emitted tree is rendered from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from porter import __version__
from porter.config import Config
from porter.lock import black_version
from porter.overrides import list_files
from porter.render.text import templates_digest
from porter.tree import sha256


def inputs_digest(config: Config, lock_text: str, overrides: Mapping[str, str]) -> str:
    """Digest of all that the emitted tree is rendered from.

    Parameters:
        overrides: relative path to sha256 of every file of overrides/.
    """
    enabled = [f"{feature.name}={feature.enabled}" for feature in config.features]
    rows = [
        __version__,
        black_version(),
        templates_digest(),
        sha256(lock_text.encode()),
        sha256(config.text.encode()),
        *enabled,
    ]
    rows += [f"{path}:{digest}" for path, digest in sorted(overrides.items())]
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()


def declaration_digests(overrides: Mapping[str, str]) -> Mapping[str, str]:
    """Those of ``override_digests`` that declare what C++ binds."""
    return {path: digest for path, digest in overrides.items() if path.startswith("vendor/") and path.endswith(".pyi")}


def override_digests(folder: Path) -> Mapping[str, str]:
    """Relative path to sha256 of every file of overrides/."""
    return {relative: sha256(path.read_bytes()) for relative, path in list_files(folder)}
