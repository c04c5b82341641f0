"""Why a checkout was not touched."""

from __future__ import annotations

from collections.abc import Sequence

from porter.errors import PorterError
from porter.findings import Finding


class SeamError(PorterError):
    """One or more seams do not fit the checkout. ``findings`` holds one entry a seam; nothing was written."""

    exit_code = 1
    code = "seam"

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        count = len(self.findings)
        listed = "\n".join(
            f"  {finding.path}:{finding.line}: {finding.message}: expected {finding.expected}; found {finding.found}"
            for finding in self.findings
        )
        super().__init__(
            f"{count} seam{'s do' if count != 1 else ' does'} not fit this DeepInfer; nothing was written\n{listed}",
            fix="use the DeepInfer release that porter.toml pins, or adapt the seams above (porter/seams/, one file each)",
        )


class CheckoutError(PorterError):
    """The folder is not a DeepInfer checkout, or holds what porter must not touch."""

    exit_code = 2
    code = "checkout"


class DirtyCheckoutError(CheckoutError):
    """git knows of changes in files that would be written."""

    code = "dirty-checkout"

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        super().__init__(
            "these files have changes that git has not committed; nothing was written\n"
            + "\n".join(f"  {path}" for path in paths),
            fix="commit or stash them, then run the command again",
        )


class ForeignFileError(CheckoutError):
    """A file that porter would create is there already and is not porter's."""

    code = "foreign-file"

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        super().__init__(
            "these files are in the way and are not porter's; nothing was written\n"
            + "\n".join(f"  {path}" for path in paths),
            fix="move them away, then run the command again",
        )


class ModifiedSinceApplyError(CheckoutError):
    """Files that porter wrote were changed since."""

    code = "modified-since-apply"

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        super().__init__(
            "these files were changed since `porter apply` wrote them; nothing was written\n"
            + "\n".join(f"  {path}" for path in paths),
            fix="take your changes out of them (a copy elsewhere will do), then run the command again",
        )


class ManifestError(CheckoutError):
    """The record of an earlier apply cannot be read."""

    code = "apply-manifest"


class NotAppliedError(CheckoutError):
    """There is nothing to revert."""

    code = "not-applied"
