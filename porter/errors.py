"""One exception base, one class per cause.

Every error names the place (``path:line`` where there is one), what was expected, and the one command or edit that
fixes it. The exit code belongs to the class: 2 for usage and configuration, 3 for an unreadable upstream or a fault
of porter's own.
"""

from __future__ import annotations

from collections.abc import Sequence


class PorterError(Exception):
    """Base of every error that porter raises on purpose.

    Parameters:
        message: what is wrong and what was expected, one sentence.
        path: file concerned, as the user knows it.
        line: 1-based line in ``path``.
        fix: the command or edit that mends it.
    """

    exit_code = 3
    code = "error"

    def __init__(
        self, message: str, *, path: str | None = None, line: int | None = None, fix: str | None = None
    ) -> None:
        self.message = message
        self.path = path
        self.line = line
        self.fix = fix
        super().__init__(self.render())

    @property
    def place(self) -> str:
        """``path:line``, ``path``, or ""."""
        if self.path is None:
            return ""
        return self.path if self.line is None else f"{self.path}:{self.line}"

    def render(self) -> str:
        """The text shown to a person, without the fix."""
        return f"{self.place}: {self.message}" if self.path is not None else self.message


class ConfigError(PorterError):
    """porter.toml cannot be read or says something that porter does not know."""

    exit_code = 2
    code = "config"


class UsageError(PorterError):
    """A command was called with arguments that do not fit."""

    exit_code = 2
    code = "usage"


class UnreadableUpstreamError(PorterError):
    """One or more upstream files cannot be read as what they should be. ``causes`` holds one error a file."""

    code = "unreadable-upstream"

    def __init__(self, causes: Sequence[PorterError]) -> None:
        self.causes = tuple(causes)
        count = len(self.causes)
        listed = "\n".join(f"  {cause.render()}" for cause in self.causes)
        super().__init__(
            f"{count} upstream file{'s' if count != 1 else ''} cannot be read; nothing was written\n{listed}",
            fix="mend or exclude the files above, then run `porter sync` again",
        )


class UnreadableFileError(PorterError):
    """One upstream file cannot be parsed, decoded or walked."""

    code = "unreadable-file"


class SourceError(PorterError):
    """A source cannot be found, fetched or unpacked."""

    code = "source"


class DistributionNotFoundError(SourceError):
    """No distribution of that name and version on the configured index or in the cache."""

    code = "distribution-not-found"


class HashMismatchError(SourceError):
    """A downloaded or cached archive does not have the sha256 that porter.lock records."""

    code = "hash-mismatch"


class ArchiveError(SourceError):
    """An archive is truncated, is not an archive, or holds members that must not be unpacked."""

    code = "archive"


class OfflineError(SourceError):
    """``--offline`` was asked for and the cache does not hold the source."""

    code = "offline"


class LockError(PorterError):
    """porter.lock cannot be read or was written by another version."""

    exit_code = 2
    code = "lock"


class OverrideError(PorterError):
    """A file in overrides/ cannot be read or does not fit the plan."""

    exit_code = 2
    code = "override"


class RenderError(PorterError):
    """A rendered file is not what the plan says: a fault of porter or of a template."""

    code = "render"


class EditedOutputError(PorterError):
    """A generated file was edited by hand since the last sync."""

    exit_code = 1
    code = "edited-output"


class TreeError(PorterError):
    """The output tree cannot be written: no permission, no space, not a folder."""

    code = "tree"


class BusyError(TreeError):
    """Another porter holds the lock on the output tree."""

    exit_code = 2
    code = "busy"
