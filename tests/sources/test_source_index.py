"""pip's configuration, read as pip reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from porter.errors import ConfigError
from porter.sources.index import PipSettings, Places, config_files, open_client, open_finders, read_settings

ORDER = ("xdg", "etc", "legacy", "user", "site", "named")


@pytest.fixture
def where(tmp_path: Path) -> Places:
    return Places(home=tmp_path / "home", prefix=tmp_path / "venv", etc=tmp_path / "etc")


def files(where: Places) -> Mapping[str, Path]:
    return {
        "xdg": where.etc / "xdg" / "pip" / "pip.conf",
        "etc": where.etc / "pip.conf",
        "legacy": where.home / ".pip" / "pip.conf",
        "user": where.home / ".config" / "pip" / "pip.conf",
        "site": where.prefix / "pip.conf",
        "named": where.home / "named.conf",
    }


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize("count", range(1, len(ORDER) + 1))
def test_later_file_wins(where: Places, count: int) -> None:
    for name in ORDER[:count]:
        write(files(where)[name], f"[global]\nindex-url = {name}\n")
    environ = {"PIP_CONFIG_FILE": str(files(where)["named"])}
    assert read_settings(environ, where).index_url == ORDER[count - 1]


def test_environment_beats_files(where: Places) -> None:
    for name in ORDER:
        write(files(where)[name], "[global]\nindex-url = file\n[download]\nindex-url = section\n")
    assert read_settings({"PIP_INDEX_URL": "variable"}, where).index_url == "variable"


def test_named_file_switches_the_users_files_off(where: Places) -> None:
    write(files(where)["user"], "[global]\nindex-url = user\nproxy = user\n")
    write(files(where)["etc"], "[global]\nproxy = etc\n")
    write(files(where)["named"], "[global]\nindex-url = named\n")
    settings = read_settings({"PIP_CONFIG_FILE": str(files(where)["named"])}, where)
    assert (settings.index_url, settings.proxy) == ("named", "etc")
    absent = read_settings({"PIP_CONFIG_FILE": str(where.home / "absent")}, where)
    assert (absent.index_url, absent.proxy) == ("user", "user")


def test_null_device_switches_all_files_off(where: Places) -> None:
    for name in ORDER:
        write(files(where)[name], "[global]\nindex-url = file\n")
    environ = {"PIP_CONFIG_FILE": os.devnull, "PIP_PROXY": "p"}
    assert config_files(environ, where) == ()
    assert read_settings(environ, where) == PipSettings(proxy="p")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[download]\nindex-url = d\n[global]\nindex-url = g\n", "d"),
        ("[install]\nindex-url = i\n[global]\nindex-url = g\n", "i"),
        ("[download]\nindex-url = d\n[install]\nindex-url = i\n", "d"),
        ("[wheel]\nindex-url = w\n[global]\nindex-url = g\n", "g"),
        ("[global]\nINDEX_URL = g\n", "g"),
        ("[global]\n--index-url = g\n", "g"),
        ("[global]\nindex-url = g\n[download]\nindex-url =\n", "g"),
        ("[global]\nindex-url =\n", None),
        ("", None),
    ],
)
def test_sections(where: Places, text: str, wanted: str | None) -> None:
    write(files(where)["user"], text)
    assert read_settings({}, where).index_url == wanted


def test_section_beats_file(where: Places) -> None:
    """A command's section in a weaker file wins over [global] in a stronger one, as in pip."""
    write(files(where)["etc"], "[download]\nindex-url = section\n")
    write(files(where)["user"], "[global]\nindex-url = file\n")
    assert read_settings({}, where).index_url == "section"


def test_lists_are_replaced_whole(where: Places) -> None:
    write(
        files(where)["user"],
        "[global]\nextra-index-url =\n    one\n    two three\ntrusted-host = a b\nfind-links = f\n",
    )
    settings = read_settings({"PIP_TRUSTED_HOST": "c"}, where)
    assert settings.extra_index_urls == ("one", "two", "three")
    assert settings.trusted_hosts == ("c",)
    assert settings.find_links == ("f",)


def test_every_option(where: Places) -> None:
    environ = {
        "PIP_INDEX_URL": "i",
        "PIP_EXTRA_INDEX_URL": "e1 e2",
        "PIP_FIND_LINKS": "f1 f2",
        "PIP_NO_INDEX": "1",
        "PIP_TRUSTED_HOST": "h",
        "PIP_CERT": "/c",
        "PIP_CLIENT_CERT": "/k",
        "PIP_PROXY": "p",
        "PIP_DEFAULT_TIMEOUT": "7.5",
        "PIP_RETRIES": "1",
        "PIP_NO_INPUT": "yes",
        "PIP_SOMETHING_NEW": "x",
    }
    assert read_settings(environ, where) == PipSettings(
        "i", ("e1", "e2"), ("f1", "f2"), True, ("h",), Path("/c"), Path("/k"), "p", 7.5, 1, False
    )


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, None),
        ({"CURL_CA_BUNDLE": "/curl"}, "/curl"),
        ({"CURL_CA_BUNDLE": "/curl", "REQUESTS_CA_BUNDLE": "/requests"}, "/requests"),
        ({"REQUESTS_CA_BUNDLE": "/requests", "PIP_CERT": "/pip"}, "/pip"),
        ({"PIP_CERT": ""}, None),
    ],
)
def test_certificates(where: Places, environ: Mapping[str, str], wanted: str | None) -> None:
    assert read_settings(environ, where).cert == (Path(wanted) if wanted else None)


def test_xdg_folders(where: Places, tmp_path: Path) -> None:
    write(tmp_path / "a" / "pip" / "pip.conf", "[global]\nindex-url = a\nproxy = a\n")
    write(tmp_path / "b" / "pip" / "pip.conf", "[global]\nindex-url = b\n")
    write(tmp_path / "c" / "pip" / "pip.conf", "[global]\ntimeout = 3\n")
    write(files(where)["xdg"], "[global]\nindex-url = unread\n")
    environ = {"XDG_CONFIG_DIRS": f"{tmp_path / 'a'}:{tmp_path / 'b'}", "XDG_CONFIG_HOME": str(tmp_path / "c")}
    settings = read_settings(environ, where)
    assert (settings.index_url, settings.proxy, settings.timeout) == ("b", "a", 3.0)


@pytest.mark.parametrize("text", ["index-url = x\n", "[global\n", "[global]\nindex-url\n", "[global]\na = 1\na = 2\n"])
def test_broken_file_is_an_error(where: Places, text: str) -> None:
    path = files(where)["user"]
    write(path, text)
    with pytest.raises(ConfigError) as caught:
        read_settings({}, where)
    assert caught.value.path == str(path)
    assert caught.value.exit_code == 2


def test_file_that_is_not_text_is_an_error(where: Places) -> None:
    path = files(where)["user"]
    write(path, "")
    path.write_bytes(b"[global]\nproxy = \xff\n")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_settings({}, where)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PIP_NO_INDEX", "maybe"),
        ("PIP_TIMEOUT", "soon"),
        ("PIP_TIMEOUT", "-1"),
        ("PIP_TIMEOUT", "nan"),
        ("PIP_RETRIES", "x"),
    ],
)
def test_value_of_the_wrong_type_is_an_error(where: Places, variable: str, value: str) -> None:
    with pytest.raises(ConfigError, match=value) as caught:
        read_settings({variable: value}, where)
    assert caught.value.path == variable


def places_of(settings: PipSettings) -> list[tuple[str, str]]:
    with open_client(settings) as client:
        return [
            (source["type"], source["url"]) for finder in open_finders(settings, client) for source in finder.sources
        ]


def test_places_in_pips_order(tmp_path: Path) -> None:
    settings = PipSettings("file:///i", ("file:///e",), (str(tmp_path), "file:///f", str(tmp_path / "absent")))
    assert places_of(settings) == [
        ("find_links", str(tmp_path)),
        ("find_links", "file:///f"),
        ("index", "file:///i"),
        ("index", "file:///e"),
    ]


def test_default_index_is_unearths_own() -> None:
    from unearth import PackageFinder

    default = [(source["type"], source["url"]) for source in PackageFinder().sources]
    assert len(default) == 1
    assert places_of(PipSettings()) == default
    assert places_of(PipSettings(extra_index_urls=("file:///e",))) == [*default, ("index", "file:///e")]


def test_no_index_means_no_index(tmp_path: Path) -> None:
    assert places_of(PipSettings("file:///i", ("file:///e",), no_index=True)) == []
    only = PipSettings("file:///i", (), (str(tmp_path),), no_index=True)
    assert places_of(only) == [("find_links", str(tmp_path))]


def test_client_has_the_settings() -> None:
    with open_client(PipSettings(trusted_hosts=("host:8080",), timeout=3.0, retries=2)) as client:
        assert client.timeout.read == 3.0
        assert ("*", "host", "8080") in set(client.iter_secure_origins())
        assert client.retries == 2


@pytest.mark.parametrize("option", ["cert", "client_cert"])
def test_certificate_that_cannot_be_read_is_an_error(tmp_path: Path, option: str) -> None:
    (tmp_path / "bad.pem").write_text("no certificate")
    for path in (tmp_path / "absent.pem", tmp_path / "bad.pem"):
        with pytest.raises(ConfigError) as caught:
            open_client(PipSettings(**{option: path}))
        assert caught.value.path == str(path)
