"""Which index to ask: the one that pip is configured with, unearth's own default where there is none.

Reads pip's configuration as pip itself does (files, then environment; ``[global]``, then ``[install]``, then
``[download]``), so that a machine set up for pip needs no second setup for porter. No index address stands here.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from porter.errors import ConfigError

if TYPE_CHECKING:
    from unearth import PackageFinder
    from unearth.fetchers import Fetcher, PyPIClient

# Later sections win. `download` is what porter does; people put index options under `install` as well.
_SECTIONS = ("global", "install", "download")
_TRUE = frozenset({"1", "y", "yes", "t", "true", "on"})
_FALSE = frozenset({"0", "n", "no", "f", "false", "off"})


@dataclass(frozen=True)
class PipSettings:
    """pip's options that decide where a distribution comes from.

    ``index_url`` is None where none is configured. ``timeout`` is in seconds. ``cert`` is a bundle file or a folder of
    certificates, ``client_cert`` a PEM file.
    """

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    no_index: bool = False
    trusted_hosts: tuple[str, ...] = ()
    cert: Path | None = None
    client_cert: Path | None = None
    proxy: str | None = None
    timeout: float = 15.0
    retries: int = 3
    prompt: bool = True


@dataclass(frozen=True)
class Places:
    """Where pip looks for its files; replaced in tests.

    ``home``: the user's home. ``prefix``: the virtual environment, or the interpreter's prefix. ``etc``: system
    configuration. ``macos``: look where macOS keeps them as well.
    """

    home: Path
    prefix: Path
    etc: Path = Path("/etc")
    macos: bool = False


def places(environ: Mapping[str, str]) -> Places:
    """This machine's places."""
    prefix = environ.get("VIRTUAL_ENV") or sys.prefix
    return Places(home=Path.home(), prefix=Path(prefix), macos=sys.platform == "darwin")


def config_files(environ: Mapping[str, str], where: Places) -> tuple[Path, ...]:
    """pip's configuration files, existing or not, weakest first.

    Global, user (legacy, then current), site, then ``PIP_CONFIG_FILE``, which switches the user's files off when it
    exists and all files off when it is the null device.
    """
    named = environ.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return ()
    files: list[Path] = []
    if where.macos:
        files.append(Path("/Library/Application Support/pip/pip.conf"))
    else:
        xdg = environ.get("XDG_CONFIG_DIRS") or str(where.etc / "xdg")
        files += [Path(folder) / "pip" / "pip.conf" for folder in xdg.split(os.pathsep) if folder]
        files.append(where.etc / "pip.conf")
    if not (named and os.path.exists(named)):
        files += [where.home / ".pip" / "pip.conf", _user_config(environ, where) / "pip.conf"]
    files.append(where.prefix / "pip.conf")
    if named:
        files.append(Path(named))
    return tuple(files)


def _user_config(environ: Mapping[str, str], where: Places) -> Path:
    mac = where.home / "Library" / "Application Support" / "pip"
    if where.macos:
        return mac if mac.is_dir() else where.home / ".config" / "pip"
    return Path(environ.get("XDG_CONFIG_HOME") or where.home / ".config") / "pip"


def read_settings(environ: Mapping[str, str] | None = None, where: Places | None = None) -> PipSettings:
    """pip's settings on this machine.

    As in pip: a file later in the order replaces a value of the same section, a later section replaces a value of an
    earlier one, the environment replaces both, lists are replaced whole, and empty values say nothing.

    Raises:
        ConfigError: a file that is not readable as pip's configuration, or a value of the wrong type.
    """
    environ = os.environ if environ is None else environ
    values: dict[str, dict[str, tuple[str, str]]] = {section: {} for section in _SECTIONS}
    for path in config_files(environ, where or places(environ)):
        for section, key, value in _file_items(path):
            if section in values:
                values[section][key] = (value, str(path))
    merged: dict[str, tuple[str, str]] = {}
    for section in _SECTIONS:
        merged.update({key: item for key, item in values[section].items() if item[0]})
    for variable, value in environ.items():
        if variable.startswith("PIP_") and value:
            merged[_key(variable.removeprefix("PIP_"))] = (value, variable)
    return _Values(merged).settings(environ)


def _key(name: str) -> str:
    return name.lower().replace("_", "-").removeprefix("--")


def _file_items(path: Path) -> Iterator[tuple[str, str, str]]:
    parser = configparser.RawConfigParser()
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError):
        return
    except UnicodeDecodeError as error:
        raise ConfigError(
            "pip's configuration file is not UTF-8 text", path=str(path), fix="save the file as UTF-8"
        ) from error
    try:
        parser.read_string(text, source=str(path))
    except configparser.Error as error:
        line = getattr(error, "lineno", None)
        raise ConfigError(
            f"pip's configuration file cannot be read: {type(error).__name__}",
            path=str(path),
            line=line if isinstance(line, int) else None,
            fix="mend the file; `pip config debug` shows which files pip reads",
        ) from error
    for section in parser.sections():
        for key, value in parser.items(section):
            yield section, _key(key), value or ""


class _Values:
    def __init__(self, merged: Mapping[str, tuple[str, str]]) -> None:
        self.merged = merged

    def settings(self, environ: Mapping[str, str]) -> PipSettings:
        # pip's own fallbacks, through requests.
        bundle = self.text("cert") or environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE")
        client_cert = self.text("client-cert")
        retries = self.number("retries", 3.0)
        return PipSettings(
            index_url=self.text("index-url"),
            extra_index_urls=self.words("extra-index-url"),
            find_links=self.words("find-links"),
            no_index=self.flag("no-index"),
            trusted_hosts=self.words("trusted-host"),
            cert=Path(bundle).expanduser() if bundle else None,
            client_cert=Path(client_cert).expanduser() if client_cert else None,
            proxy=self.text("proxy"),
            timeout=self.number("timeout", self.number("default-timeout", 15.0)),
            retries=int(retries),
            prompt=not self.flag("no-input"),
        )

    def text(self, key: str) -> str | None:
        return self.merged[key][0].strip() if key in self.merged else None

    def words(self, key: str) -> tuple[str, ...]:
        return tuple((self.text(key) or "").split())

    def flag(self, key: str) -> bool:
        text = (self.text(key) or "0").lower()
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        raise self.error(key, text, "a boolean", "write 1 or 0")

    def number(self, key: str, default: float) -> float:
        text = self.text(key)
        if text is None:
            return default
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not 0 <= number < float("inf"):
            raise self.error(key, text, "a number of 0 or more", "write a plain number")
        return number

    def error(self, key: str, text: str, wanted: str, fix: str) -> ConfigError:
        return ConfigError(f"pip's option {key!r} must be {wanted}, not {text!r}", path=self.merged[key][1], fix=fix)


def open_client(settings: PipSettings) -> PyPIClient:
    """An HTTP client with pip's certificates, trusted hosts, proxy, time limit and patience.

    The caller closes it.

    Raises:
        ConfigError: a certificate that cannot be read.
    """
    from porter.sources.client import RetryingClient

    return RetryingClient.of(settings)


def open_finders(settings: PipSettings, client: PyPIClient) -> Sequence[PackageFinder]:
    """One finder for each place to look at, in pip's order: find-links, the index, extra indexes.

    Each stands alone so that a dead place hides no living one. Any file is taken whatever interpreter or platform it
    is for: porter reads it and never runs it.
    """
    from unearth import PackageFinder

    # PyPIClient is unearth's own fetcher; its type is merely wider than the protocol's.
    finder = partial(
        PackageFinder, cast("Fetcher", client), trusted_hosts=settings.trusted_hosts, ignore_compatibility=True
    )
    links = [link for link in map(_local, settings.find_links) if "://" in link or os.path.exists(link)]
    found = [finder(find_links=[link]) for link in links]
    if not settings.no_index:
        # A finder that is given no place takes unearth's default index.
        found.append(finder(index_urls=[settings.index_url]) if settings.index_url else finder())
        found += [finder(index_urls=[url]) for url in settings.extra_index_urls]
    return found


def _local(link: str) -> str:
    return os.path.expanduser(link) if link.startswith("~") else link


def index_urls(settings: PipSettings) -> tuple[str, ...]:
    """Indexes whose embedded credentials may be used."""
    if settings.no_index:
        return ()
    return tuple(url for url in (settings.index_url, *settings.extra_index_urls) if url)
