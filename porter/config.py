"""porter.toml: which sources, which features, which names are left for later.

Read strictly: an unknown key or a value of the wrong type is an error that lists what is known.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from porter.errors import ConfigError

CONFIG_NAME = "porter.toml"
LOCK_NAME = "porter.lock"
ENGINE = "deepinfer"
VENDOR_PACKAGES = ("deep_ep", "deep_gemm", "deep_select", "flash_mla", "tile_kernels", "tilelang")
SOURCE_NAMES = (ENGINE, *VENDOR_PACKAGES)


@dataclass(frozen=True)
class Feature:
    """A switch over upstream names.

    Names that match ``symbols`` (shell patterns over symbol ids and their public aliases) are excluded while the
    feature is off; ``reason`` says why it is off by default.
    """

    name: str
    enabled: bool
    reason: str
    symbols: tuple[str, ...]


@dataclass(frozen=True)
class Pending:
    """Names that somebody decided to leave for later: patterns, and the reason."""

    symbols: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Config:
    """porter.toml as data. ``root`` is its folder; relative paths are relative to it."""

    root: Path
    sources: Mapping[str, str]
    out: str = "generated"
    overrides: str = "overrides"
    features: tuple[Feature, ...] = ()
    pending: tuple[Pending, ...] = ()
    file: str = CONFIG_NAME
    text: str = field(default="", repr=False)

    @property
    def out_path(self) -> Path:
        """Folder of the emitted tree."""
        return self.root / self.out

    @property
    def overrides_path(self) -> Path:
        """Folder of the hand-written bodies."""
        return self.root / self.overrides

    @property
    def declarations_path(self) -> Path:
        """Folder of ``<package>/<module>.pyi`` files, which declare what C++ binds and no upstream source tells."""
        return self.overrides_path / "vendor"

    @property
    def lock_path(self) -> Path:
        """porter.lock."""
        return self.root / LOCK_NAME

    def lock_for(self, out: Path | None) -> Path:
        """The lock that belongs to an output folder: porter.lock, or one inside a folder named on the command line."""
        return self.lock_path if out is None or out.absolute() == self.out_path.absolute() else out / LOCK_NAME

    def line_of(self, text: str) -> int | None:
        """First line of porter.toml that holds ``text``, 1-based."""
        for number, line in enumerate(self.text.splitlines(), 1):
            if text in line:
                return number
        return None

    def with_features(self, names: tuple[str, ...]) -> Config:
        """The same configuration with more features on. ``all`` stands for every one.

        Raises:
            ConfigError: a name that is no feature.
        """
        known = {feature.name for feature in self.features}
        unknown = [name for name in names if name != "all" and name not in known]
        if unknown:
            raise ConfigError(
                f"no feature named {unknown[0]!r}; known: {', '.join(sorted(known)) or 'none'}",
                path=self.file,
                fix="name a feature of porter.toml, or `all`",
            )
        return Config(
            **{
                **self.__dict__,
                "features": tuple(
                    Feature(f.name, f.enabled or f.name in names or "all" in names, f.reason, f.symbols)
                    for f in self.features
                ),
            }
        )


def find_config(start: Path) -> Path:
    """The nearest porter.toml at ``start`` or above it.

    Raises:
        ConfigError: there is none.
    """
    for folder in (start, *start.parents):
        candidate = folder / CONFIG_NAME
        if candidate.is_file():
            return candidate
    raise ConfigError(
        f"no {CONFIG_NAME} here or in any folder above",
        path=str(start),
        fix="run porter inside a project, or pass `--project FOLDER`",
    )


def load_config(path: Path) -> Config:
    """Read porter.toml.

    Raises:
        ConfigError: not TOML, an unknown key, a missing or wrongly typed value.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", path=path.name, fix="check that the file exists and is readable"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError("is not UTF-8 text", path=path.name, fix="save porter.toml as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        line = getattr(error, "lineno", None) or _toml_line(str(error))
        raise ConfigError(
            f"is not valid TOML: {error}", path=path.name, line=line, fix="mend the line named"
        ) from error
    return _Reader(path, text).config(data)


def _toml_line(message: str) -> int | None:
    _, found, rest = message.partition("at line ")
    digits = rest.split(",")[0].strip(") ")
    return int(digits) if found and digits.isdigit() else None


class _Reader:
    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.text = text

    def error(self, message: str, needle: str, fix: str) -> ConfigError:
        line = next((n for n, row in enumerate(self.text.splitlines(), 1) if needle in row), None)
        return ConfigError(message, path=self.path.name, line=line, fix=fix)

    def keys(self, table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
        for key in table:
            if key not in known:
                close = get_close_matches(key, known, 1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                raise self.error(
                    f"unknown key {key!r} in {where}{hint}", key, f"remove it or use one of: {', '.join(sorted(known))}"
                )

    def table(self, data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        value = data.get(key, {})
        if not isinstance(value, dict):
            raise self.error(f"[{key}] must be a table", key, f"write it as [{key}]")
        return value

    def typed[T](self, table: Mapping[str, Any], key: str, kind: type[T], where: str, default: T | None = None) -> T:
        if key not in table:
            if default is not None:
                return default
            raise self.error(
                f"{where} needs {key!r} ({kind.__name__})", where.strip("[]").split(".")[-1], f"add `{key} = ...`"
            )
        value = table[key]
        if not isinstance(value, kind):
            raise self.error(
                f"{key!r} in {where} must be a {kind.__name__}, not {type(value).__name__}", key, "correct the value"
            )
        return value

    def strings(self, table: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
        values = self.typed(table, key, list, where)
        for value in values:
            if not isinstance(value, str) or not value:
                raise self.error(f"{key!r} in {where} must hold non-empty strings", key, "correct the value")
        duplicates = sorted({value for value in values if values.count(value) > 1})
        if duplicates:
            raise self.error(f"{duplicates[0]!r} stands twice in {where}", duplicates[0], "remove one")
        return tuple(values)

    def config(self, data: Mapping[str, Any]) -> Config:
        self.keys(data, ("sources", "output", "features", "pending"), "porter.toml")
        sources = self.table(data, "sources")
        self.keys(sources, SOURCE_NAMES, "[sources]")
        for name in SOURCE_NAMES:
            self.typed(sources, name, str, "[sources]")
        output = self.table(data, "output")
        self.keys(output, ("folder", "overrides"), "[output]")
        features = []
        for name, body in self.table(data, "features").items():
            where = f"[features.{name}]"
            if not isinstance(body, dict):
                raise self.error(f"{where} must be a table", name, f"write it as {where}")
            self.keys(body, ("enabled", "reason", "symbols"), where)
            reason = self.typed(body, "reason", str, where)
            if not reason.strip():
                raise self.error(f"{where} needs a reason", name, "say why the feature is off")
            features.append(
                Feature(
                    name,
                    bool(self.typed(body, "enabled", bool, where, False)),
                    reason,
                    self.strings(body, "symbols", where),
                )
            )
        rows = data.get("pending", [])
        if not isinstance(rows, list):
            raise self.error("pending must be an array of tables", "pending", "write it as [[pending]]")
        pending = []
        for body in rows:
            self.keys(body, ("symbols", "reason"), "[[pending]]")
            pending.append(
                Pending(self.strings(body, "symbols", "[[pending]]"), self.typed(body, "reason", str, "[[pending]]"))
            )
        return Config(
            root=self.path.parent,
            sources={name: sources[name] for name in SOURCE_NAMES},
            out=self.typed(output, "folder", str, "[output]", "generated"),
            overrides=self.typed(output, "overrides", str, "[output]", "overrides"),
            features=tuple(features),
            pending=tuple(pending),
            text=self.text,
        )
