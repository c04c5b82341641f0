"""The text form of a source, and when a lock's record is about it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from porter.errors import ConfigError, LockError, UsageError
from porter.sources.spec import DistributionSpec, PathSpec, parse_source, record_for

SHA = "a" * 64


@pytest.mark.parametrize(
    ("text", "distribution", "version"),
    [
        ("deepinfer==0.1.0", "deepinfer", "0.1.0"),
        ("  Tile_Kernels == 2.1.0 ", "tile-kernels", "2.1.0"),
        ("tokenspeed.deepselect==1.0.0.post20260910", "tokenspeed-deepselect", "1.0.0.post20260910"),
        ("demo==1.0-1", "demo", "1.0.post1"),
        ("demo==v1.0RC1", "demo", "1.0rc1"),
        ("demo==1.0+cpu.1", "demo", "1.0+cpu.1"),
        ("demo==1!2.0", "demo", "1!2.0"),
    ],
)
def test_distribution(tmp_path: Path, text: str, distribution: str, version: str) -> None:
    spec = parse_source("demo", text, base=tmp_path, package_dirs=("demo",))
    assert spec == DistributionSpec("demo", distribution, version, ("demo",))
    assert spec.requirement == f"{distribution}=={version}"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("../demo", "{up}/demo"),
        ("./demo", "{base}/demo"),
        (".", "{base}"),
        ("vendor/demo", "{base}/vendor/demo"),
        ("here", "{base}/here"),
        ("/src/demo==1.0", "/src/demo==1.0"),
        ("/src/a @ b", "/src/a @ b"),
        ("~/demo", "{home}/demo"),
    ],
)
def test_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, path: str) -> None:
    base, home = tmp_path / "project", tmp_path / "home"
    (base / "here").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    assert parse_source("demo", text, base=base) == PathSpec(
        "demo", Path(path.format(base=base, home=home, up=tmp_path))
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("demo", "not pinned"),
        ("demo>=1.0", "not pinned"),
        ("demo~=1.0", "not pinned"),
        ("demo===1.0", "not pinned"),
        ("demo==1.0,<2", "not pinned"),
        ("demo==1.*", "not one exact version"),
        ("demo==one", "neither"),
        ("demo[extra]==1.0", "extras"),
        ("demo==1.0; python_version > '3'", "markers"),
        ("demo @ file:///src/demo.tar.gz", "URL"),
        ("https://host/demo.tar.gz", "neither"),
        ("de mo==1", "neither"),
    ],
)
@pytest.mark.parametrize("error", [ConfigError, UsageError])
def test_bad_text(tmp_path: Path, text: str, words: str, error: type[ConfigError | UsageError]) -> None:
    with pytest.raises(error, match=words) as caught:
        parse_source("demo", text, base=tmp_path, error=error, where="porter.toml")
    assert caught.value.exit_code == 2
    assert caught.value.path == "porter.toml"
    assert "name==version" in str(caught.value.fix)


@dataclass(frozen=True)
class Record:
    requirement: str = "demo==1.0"
    version: str = "1.0"
    filename: str = "demo-1.0.tar.gz"
    sha256: str = SHA


SPEC = DistributionSpec("demo", "demo", "1.0")


@pytest.mark.parametrize("record", [Record(), Record("Demo == 1.0.0", "1.0.0")])
def test_record_counts(record: Record) -> None:
    assert record_for(SPEC, record) is record


@pytest.mark.parametrize(
    "record",
    [
        None,
        Record("demo==1.1", "1.1"),
        Record("other==1.0"),
        Record("../demo", "1.0"),
        Record("folder 1.0", "unknown"),
        Record(filename=""),
        Record(sha256=""),
    ],
)
def test_record_of_something_else_does_not_count(record: Record | None) -> None:
    assert record_for(SPEC, record) is None


@pytest.mark.parametrize(
    "record",
    [
        Record(filename="../../evil.tar.gz"),
        Record(filename="/evil.tar.gz"),
        Record(filename=".."),
        Record(sha256="../" * 20),
        Record(sha256="A" * 64),
        Record(sha256="a" * 63),
    ],
)
def test_record_that_would_leave_the_cache_is_refused(record: Record) -> None:
    with pytest.raises(LockError) as caught:
        record_for(SPEC, record)
    assert caught.value.path == "porter.lock"
