"""porter.toml: what is accepted and how each mistake is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from porter.config import SOURCE_NAMES, find_config, load_config
from porter.errors import ConfigError

SOURCES = "[sources]\n" + "".join(f'{name} = "x-{name}==1.0"\n' for name in SOURCE_NAMES)
GOOD = (
    SOURCES
    + '[features.cp]\nreason = "one rank"\nsymbols = ["tilelang_ops.asc.a.a_tl"]\n[[pending]]\nreason = "later"\nsymbols = ["deep_ep.*"]\n'
)


def write(folder: Path, text: str) -> Path:
    path = folder / "porter.toml"
    path.write_text(text)
    return path


def test_reads_all_fields(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD))
    assert config.sources["deep_ep"] == "x-deep_ep==1.0"
    assert [(f.name, f.enabled, f.reason, f.symbols) for f in config.features] == [
        ("cp", False, "one rank", ("tilelang_ops.asc.a.a_tl",))
    ]
    assert config.pending[0].symbols == ("deep_ep.*",)
    assert config.out_path == tmp_path / "generated"


def test_features_are_switched_on_for_a_run(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD))
    assert config.with_features(("cp",)).features[0].enabled
    assert config.with_features(("all",)).features[0].enabled
    with pytest.raises(ConfigError, match="no feature named 'mtp'; known: cp"):
        config.with_features(("mtp",))


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("[sources\n", "not valid TOML", 1),
        (GOOD + "[outputs]\n", "unknown key 'outputs'", 15),
        (GOOD.replace("[[pending]]", "[[pendng]]"), "did you mean 'pending'", 12),
        (SOURCES.replace("deep_ep =", "deep_eq ="), "unknown key 'deep_eq' in .sources.; did you mean 'deep_ep'", 3),
        (SOURCES.replace('"x-tilelang==1.0"', "1"), "'tilelang' in .sources. must be a str, not int", 8),
        ("\n".join(SOURCES.splitlines()[:-1]), "needs 'tilelang'", 1),
        (GOOD.replace('reason = "one rank"\n', ""), "needs 'reason'", None),
        (GOOD.replace('"one rank"', '"  "'), "needs a reason", None),
        (GOOD.replace('["deep_ep.*"]', '["deep_ep.*", "deep_ep.*"]'), "stands twice", 14),
        (GOOD.replace('["deep_ep.*"]', '"deep_ep.*"'), "must be a list, not str", None),
        (GOOD.replace('["deep_ep.*"]', '[""]'), "non-empty strings", None),
        (GOOD.replace("[features.cp]", "[features]\ncp = 1\n[features.x]"), "must be a table", None),
    ],
)
def test_mistakes_name_the_line(tmp_path: Path, text: str, message: str, line: int | None) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(write(tmp_path, text))
    assert caught.value.path == "porter.toml"
    assert caught.value.fix
    if line is not None:
        assert caught.value.line == line
    assert caught.value.exit_code == 2


def test_unreadable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path / "porter.toml")
    (tmp_path / "porter.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_config(tmp_path / "porter.toml")


def test_found_from_a_folder_below(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    assert find_config(below) == path
    with pytest.raises(ConfigError, match=r"no porter\.toml"):
        find_config(Path("/"))
