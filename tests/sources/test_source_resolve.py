"""From the index to an unpacked folder, on this machine alone."""

from __future__ import annotations

import base64
import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from porter.errors import (
    ArchiveError,
    DistributionNotFoundError,
    HashMismatchError,
    OfflineError,
    PorterError,
    SourceError,
)
from porter.sources.cache import CACHE_VARIABLE, default_cache
from porter.sources.index import PipSettings, read_settings
from porter.sources.resolve import ResolvedSource, resolve
from porter.sources.rules import Limits, UnpackRules
from porter.sources.spec import DistributionSpec
from tests.sources.builders import (
    PACKAGE,
    Recorder,
    Reply,
    disk_index,
    entry,
    environ,
    page,
    run,
    sdist,
    server,
    sha256,
    tar,
    wheel,
)
from tests.sources.test_source_spec import Record

SPEC = DistributionSpec("demo", "demo", "1.0", ("demo",))
NOWHERE = PipSettings(no_index=True)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A find-links folder with one source archive."""
    folder = tmp_path / "shelf"
    sdist(folder)
    return folder


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def links(*folders: Path) -> PipSettings:
    return PipSettings(find_links=tuple(map(str, folders)), no_index=True)


def record_of(found: ResolvedSource) -> Record:
    return Record(filename=str(found.filename), sha256=found.sha256)


def contents(found: ResolvedSource) -> dict[str, str]:
    return {path: (found.root / path).read_text() for path in PACKAGE}


def leftovers(cache: Path) -> list[str]:
    """Things in the cache that are not whole."""
    return [p.name for p in cache.rglob("*") if p.name.startswith(".download-") or p.name.endswith(".partial")]


def test_source_archive(shelf: Path, cache: Path) -> None:
    found = resolve(SPEC, cache=cache, settings=links(shelf))
    assert (found.name, found.version, found.kind) == ("demo", "1.0", "distribution")
    assert (found.filename, found.sha256) == ("demo-1.0.tar.gz", sha256(shelf / "demo-1.0.tar.gz"))
    assert found.root.name == "demo-1.0"
    assert found.package_dirs == ("demo",)
    assert contents(found) == PACKAGE
    assert leftovers(cache) == []


def test_wheel_is_preferred(shelf: Path, cache: Path) -> None:
    wheel(shelf, {**PACKAGE, "demo/lib.so": "binary"})
    found = resolve(SPEC, cache=cache, settings=links(shelf))
    assert found.filename == "demo-1.0-py3-none-any.whl"
    assert contents(found) == PACKAGE
    assert not (found.root / "demo/lib.so").exists()


def test_nothing_of_it_is_executed(shelf: Path, cache: Path, tmp_path: Path) -> None:
    harm = f"import pathlib\npathlib.Path({str(tmp_path / 'harm')!r}).write_text('')\n"
    files = {"demo/__init__.py": harm, "setup.py": harm, "conftest.py": harm, "sitecustomize.py": harm}
    sdist(shelf, files)
    found = resolve(replace(SPEC, package_dirs=()), cache=cache, settings=links(shelf))
    assert (found.root / "setup.py").read_text() == harm
    assert not (tmp_path / "harm").exists()
    assert "demo" not in sys.modules


def test_second_time_asks_nobody(shelf: Path, cache: Path) -> None:
    first = resolve(SPEC, cache=cache, settings=links(shelf))
    shown = Recorder()
    again = resolve(SPEC, lock_record=record_of(first), cache=cache, settings=NOWHERE, progress=shown)
    assert again == first
    assert shown.tasks == []


def test_every_packages_folder_is_its_own(shelf: Path, cache: Path) -> None:
    sdist(shelf, {"other/__init__.py": "x = 1\n"}, "other", "2.0")
    demo = resolve(SPEC, cache=cache, settings=links(shelf))
    other = resolve(DistributionSpec("other", "other", "2.0"), cache=cache, settings=links(shelf))
    assert demo.root != other.root
    assert contents(demo) == PACKAGE


def test_other_rules_are_another_folder(shelf: Path, cache: Path) -> None:
    every = resolve(SPEC, cache=cache, settings=links(shelf))
    few = resolve(SPEC, cache=cache, settings=links(shelf), rules=UnpackRules(suffixes=(".py",), names=()))
    assert every.root != few.root
    assert (every.root / "PKG-INFO").exists()
    assert not (few.root / "PKG-INFO").exists()


def test_local_version_is_another_version(shelf: Path, cache: Path) -> None:
    sdist(shelf, {"demo/__init__.py": "local = 1\n"}, version="1.0+local")
    assert contents(resolve(SPEC, cache=cache, settings=links(shelf))) == PACKAGE
    local = resolve(replace(SPEC, version="1.0+local"), cache=cache, settings=links(shelf))
    assert (local.root / "demo/__init__.py").read_text() == "local = 1\n"


@pytest.mark.parametrize("version", ["2.0", "1.0.1"])
def test_unknown_version(shelf: Path, cache: Path, version: str) -> None:
    with pytest.raises(DistributionNotFoundError, match=version) as caught:
        resolve(replace(SPEC, version=version), cache=cache, settings=links(shelf))
    assert "porter.toml" in str(caught.value.fix)


def test_no_place_at_all(cache: Path) -> None:
    with pytest.raises(DistributionNotFoundError):
        resolve(SPEC, cache=cache, settings=NOWHERE)


def test_folder_named_like_an_archive_is_none(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "shelf" / "demo-1.0.tar.gz").mkdir(parents=True)
    with pytest.raises(DistributionNotFoundError):
        resolve(SPEC, cache=cache, settings=links(tmp_path / "shelf"))


def test_package_that_is_not_in_it(shelf: Path, cache: Path) -> None:
    with pytest.raises(SourceError, match="no Python package 'absent'") as caught:
        resolve(replace(SPEC, package_dirs=("absent",)), cache=cache, settings=links(shelf))
    assert caught.value.path == "demo-1.0.tar.gz"


def test_bad_archive_is_not_unpacked(shelf: Path, cache: Path) -> None:
    tar(shelf / "demo-1.0.tar.gz", [entry("demo-1.0/demo/__init__.py"), entry("../evil.py")])
    with pytest.raises(ArchiveError, match="leads out"):
        resolve(SPEC, cache=cache, settings=links(shelf))
    assert not list(cache.rglob("*.py"))
    assert leftovers(cache) == []


def test_too_large_download_is_stopped(shelf: Path, cache: Path) -> None:
    with pytest.raises(ArchiveError, match="allowed"):
        resolve(SPEC, cache=cache, settings=links(shelf), rules=UnpackRules(Limits(archive_bytes=100)))
    assert leftovers(cache) == []


# The lock's record


def test_lock_names_the_file(shelf: Path, cache: Path) -> None:
    """Also where the preference would be another."""
    wheel(shelf)
    record = Record(sha256=sha256(shelf / "demo-1.0.tar.gz"))
    assert resolve(SPEC, lock_record=record, cache=cache, settings=links(shelf)).filename == "demo-1.0.tar.gz"


def test_lock_of_another_version_does_not_count(shelf: Path, cache: Path) -> None:
    record = Record("demo==0.9", "0.9", "demo-0.9.tar.gz")
    assert resolve(SPEC, lock_record=record, cache=cache, settings=links(shelf)).filename == "demo-1.0.tar.gz"


def test_archive_of_another_digest_than_locked(shelf: Path, cache: Path) -> None:
    with pytest.raises(HashMismatchError) as caught:
        resolve(SPEC, lock_record=Record(), cache=cache, settings=links(shelf))
    assert caught.value.path == "demo-1.0.tar.gz"
    assert "a" * 64 in caught.value.message
    assert sha256(shelf / "demo-1.0.tar.gz") in caught.value.message
    assert "porter sync" in str(caught.value.fix)
    assert not list(cache.rglob("*.tar.gz"))
    assert not list(cache.rglob("*.py"))


def test_locked_bytes_are_found_at_the_second_place(shelf: Path, cache: Path, tmp_path: Path) -> None:
    locked = sdist(tmp_path / "locked", {"demo/__init__.py": "locked = 1\n"})
    index = disk_index(tmp_path, {locked: f"sha256={sha256(locked)}"})
    settings = PipSettings(index, find_links=(str(shelf),))
    found = resolve(SPEC, lock_record=Record(sha256=sha256(locked)), cache=cache, settings=settings)
    assert found.sha256 == sha256(locked)


# What the index states


@pytest.mark.parametrize("kind", ["sha256", "sha512", "md5", ""])
def test_stated_digest_agrees(tmp_path: Path, cache: Path, kind: str) -> None:
    archive = sdist(tmp_path)
    fragment = f"{kind}={hashlib.new(kind, archive.read_bytes()).hexdigest()}" if kind else ""
    found = resolve(SPEC, cache=cache, settings=PipSettings(disk_index(tmp_path, {archive: fragment})))
    assert contents(found) == PACKAGE


@pytest.mark.parametrize("kind", ["sha256", "sha512", "md5"])
def test_stated_digest_differs(tmp_path: Path, cache: Path, kind: str) -> None:
    archive = sdist(tmp_path)
    fragment = f"{kind}={hashlib.new(kind, b'other').hexdigest()}"
    with pytest.raises(HashMismatchError, match="not what the index states") as caught:
        resolve(SPEC, cache=cache, settings=PipSettings(disk_index(tmp_path, {archive: fragment})))
    assert hashlib.new(kind, archive.read_bytes()).hexdigest() in caught.value.message
    assert not list(cache.rglob("*.tar.gz"))


def test_stated_digest_that_the_cache_holds_saves_the_download(tmp_path: Path, cache: Path) -> None:
    archive = sdist(tmp_path)
    settings = PipSettings(disk_index(tmp_path, {archive: f"sha256={sha256(archive)}"}))
    first = resolve(SPEC, cache=cache, settings=settings)
    shown = Recorder()
    assert resolve(SPEC, cache=cache, settings=settings, progress=shown) == first
    assert shown.tasks == []


# Offline


@pytest.mark.parametrize("locked", [False, True])
def test_offline_with_an_empty_cache(cache: Path, shelf: Path, locked: bool) -> None:
    with pytest.raises(OfflineError) as caught:
        resolve(SPEC, lock_record=Record() if locked else None, offline=True, cache=cache, settings=links(shelf))
    assert caught.value.fix == "run `porter sync` without --offline once"
    assert caught.value.path == str(cache)


@pytest.mark.parametrize("locked", [False, True])
def test_offline_with_a_full_cache(cache: Path, shelf: Path, locked: bool) -> None:
    found = resolve(SPEC, cache=cache, settings=links(shelf))
    record = record_of(found) if locked else None
    assert resolve(SPEC, lock_record=record, offline=True, cache=cache) == found


def test_offline_takes_the_locked_file_alone(cache: Path, shelf: Path) -> None:
    resolve(SPEC, cache=cache, settings=links(shelf))
    with pytest.raises(OfflineError, match=r"demo-1\.0\.tar\.gz"):
        resolve(SPEC, lock_record=Record(), offline=True, cache=cache)


def test_offline_prefers_as_online_does(cache: Path, shelf: Path) -> None:
    resolve(SPEC, cache=cache, settings=links(shelf))
    pure = wheel(shelf)
    resolve(SPEC, lock_record=Record(filename=pure.name, sha256=sha256(pure)), cache=cache, settings=links(shelf))
    assert resolve(SPEC, offline=True, cache=cache).filename == pure.name


def _unpacked(found: ResolvedSource) -> Path:
    return next(parent for parent in found.root.parents if parent.parent.name == "unpacked")


def test_offline_unpacks_again_what_was_damaged(cache: Path, shelf: Path) -> None:
    found = resolve(SPEC, cache=cache, settings=links(shelf))
    (found.root / "demo/__init__.py").write_text("harm = 1\n")
    again = resolve(SPEC, offline=True, cache=cache)
    assert again == found
    assert contents(again) == PACKAGE


def _damage(cache: Path, found: ResolvedSource) -> Path:
    """Spoil both the unpacked folder and the archive in the cache."""
    (_unpacked(found) / "unpacked.json").unlink()
    archive = next(cache.rglob(str(found.filename)))
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 0xFF
    archive.write_bytes(data)
    return archive


@pytest.mark.parametrize("locked", [False, True])
def test_offline_with_a_damaged_archive(cache: Path, shelf: Path, locked: bool) -> None:
    found = resolve(SPEC, cache=cache, settings=links(shelf))
    archive = _damage(cache, found)
    with pytest.raises(HashMismatchError, match=found.sha256) as caught:
        resolve(SPEC, lock_record=record_of(found) if locked else None, offline=True, cache=cache)
    assert sha256(archive) in caught.value.message
    assert "--offline" in str(caught.value.fix)


def test_online_fetches_a_damaged_archive_again(cache: Path, shelf: Path) -> None:
    found = resolve(SPEC, cache=cache, settings=links(shelf))
    archive = _damage(cache, found)
    assert resolve(SPEC, lock_record=record_of(found), cache=cache, settings=links(shelf)) == found
    assert sha256(archive) == found.sha256
    assert contents(found) == PACKAGE


def test_offline_with_the_archive_gone_and_the_folder_damaged(cache: Path, shelf: Path) -> None:
    found = resolve(SPEC, cache=cache, settings=links(shelf))
    _damage(cache, found).unlink()
    with pytest.raises(OfflineError):
        resolve(SPEC, lock_record=record_of(found), offline=True, cache=cache)


# A server that misbehaves

WANTED = "/simple/demo/"


def site(
    tmp_path: Path, change: Callable[[str, int, Reply], Reply] = lambda _, __, reply: reply
) -> Callable[[str, int], Reply]:
    """A server's handler for one archive; ``change`` spoils its replies."""
    archive = sdist(tmp_path / "served")
    replies: Mapping[str, Reply] = {
        WANTED: Reply(page([("/files/demo-1.0.tar.gz", f"sha256={sha256(archive)}")]).encode()),
        "/files/demo-1.0.tar.gz": Reply(archive.read_bytes(), headers={"Content-Type": "application/gzip"}),
    }
    return lambda path, before: change(path, before, replies.get(path, Reply(status=404)))


def at(address: str, **options: object) -> PipSettings:
    return replace(PipSettings(f"{address}/simple", retries=0, timeout=5.0), **options)


def test_served(tmp_path: Path, cache: Path) -> None:
    with server(site(tmp_path)) as (address, asked):
        found = resolve(SPEC, cache=cache, settings=at(address))
    assert contents(found) == PACKAGE
    assert asked == [WANTED, "/files/demo-1.0.tar.gz"]


def test_json_index(tmp_path: Path, cache: Path) -> None:
    archive = sdist(tmp_path / "served")
    listing = {
        "meta": {"api-version": "1.0"},
        "name": "demo",
        "files": [{"filename": archive.name, "url": f"/files/{archive.name}", "hashes": {"sha256": sha256(archive)}}],
    }

    def change(path: str, _: int, reply: Reply) -> Reply:
        kind = {"Content-Type": "application/vnd.pypi.simple.v1+json"}
        return Reply(json.dumps(listing).encode(), headers=kind) if path == WANTED else reply

    with server(site(tmp_path, change)) as (address, _):
        assert contents(resolve(SPEC, cache=cache, settings=at(address))) == PACKAGE


def test_redirects_are_followed(tmp_path: Path, cache: Path) -> None:
    def change(path: str, _: int, reply: Reply) -> Reply:
        if path.startswith("/old/"):
            return Reply(status=302, headers={"Location": path.replace("/old/", "/simple/")})
        return reply

    with server(site(tmp_path, change)) as (address, _):
        assert contents(resolve(SPEC, cache=cache, settings=PipSettings(f"{address}/old"))) == PACKAGE


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_busy_server_is_asked_again(tmp_path: Path, cache: Path, status: int) -> None:
    def change(_: str, before: int, reply: Reply) -> Reply:
        return Reply(status=status) if before == 0 else reply

    with server(site(tmp_path, change)) as (address, asked):
        assert contents(resolve(SPEC, cache=cache, settings=at(address, retries=1))) == PACKAGE
    assert len(asked) == 4


def test_server_that_stays_busy(cache: Path) -> None:
    with server(lambda *_: Reply(status=503)) as (address, asked), pytest.raises(SourceError, match="503") as caught:
        resolve(SPEC, cache=cache, settings=at(address, retries=1))
    assert not isinstance(caught.value, DistributionNotFoundError)
    assert asked == [WANTED, WANTED]


def test_cut_download_is_tried_again(tmp_path: Path, cache: Path) -> None:
    def change(path: str, before: int, reply: Reply) -> Reply:
        return replace(reply, body=reply.body[:50], cut=True) if path != WANTED and before == 0 else reply

    with server(site(tmp_path, change)) as (address, asked):
        found = resolve(SPEC, cache=cache, settings=at(address))
    assert contents(found) == PACKAGE
    assert len(asked) == 3


def test_download_that_is_cut_every_time(tmp_path: Path, cache: Path) -> None:
    def change(path: str, _: int, reply: Reply) -> Reply:
        return replace(reply, body=reply.body[:50], cut=True) if path != WANTED else reply

    spoiled = server(site(tmp_path, change))
    with spoiled as (address, _), pytest.raises(SourceError, match="download failed") as caught:
        resolve(SPEC, cache=cache, settings=at(address))
    assert caught.value.path == "demo-1.0.tar.gz"
    assert leftovers(cache) == []
    assert not list(cache.rglob("*.tar.gz"))


@pytest.mark.parametrize("status", [403, 404, 410])
def test_refused_download(tmp_path: Path, cache: Path, status: int) -> None:
    def change(path: str, _: int, reply: Reply) -> Reply:
        return reply if path == WANTED else Reply(status=status)

    with server(site(tmp_path, change)) as (address, _), pytest.raises(SourceError, match=str(status)):
        resolve(SPEC, cache=cache, settings=at(address))


def test_unknown_project(cache: Path) -> None:
    with server(lambda *_: Reply(status=404)) as (address, _), pytest.raises(DistributionNotFoundError):
        resolve(SPEC, cache=cache, settings=at(address))


@pytest.mark.parametrize(
    "reply",
    [
        Reply(b"{", headers={"Content-Type": "application/vnd.pypi.simple.v1+json"}),
        Reply(b"[]", headers={"Content-Type": "application/vnd.pypi.simple.v1+json"}),
        Reply(b"\xff\xfe", headers={"Content-Type": "text/html; charset=utf-8"}),
        Reply(b"<html>log in</html>", headers={"Content-Type": "image/png"}),
    ],
)
def test_nonsense_from_the_index(cache: Path, reply: Reply) -> None:
    with server(lambda *_: reply) as (address, _), pytest.raises(SourceError, match="not every place could be asked"):
        resolve(SPEC, cache=cache, settings=at(address))


def closed_port() -> str:
    with server(lambda *_: Reply()) as (address, _):
        return address


def test_nobody_answers(cache: Path) -> None:
    with pytest.raises(SourceError, match="not every place could be asked") as caught:
        resolve(SPEC, cache=cache, settings=at(closed_port()))
    assert not isinstance(caught.value, DistributionNotFoundError)
    assert "network" in str(caught.value.fix)


def test_dead_place_hides_no_living_one(tmp_path: Path, cache: Path, shelf: Path) -> None:
    dead = closed_port()
    with server(site(tmp_path)) as (address, _):
        extra = at(dead, extra_index_urls=(f"{address}/simple",))
        assert contents(resolve(SPEC, cache=cache, settings=extra)) == PACKAGE
    assert contents(resolve(SPEC, cache=tmp_path / "b", settings=at(dead, find_links=(str(shelf),)))) == PACKAGE


def test_credentials_are_never_shown(cache: Path) -> None:
    secret = "s3cret"
    with server(lambda *_: Reply(status=403)) as (address, _):
        named = address.replace("http://", f"http://user:{secret}@")
        with pytest.raises(SourceError) as caught:
            resolve(SPEC, cache=cache, settings=at(named, prompt=False))
    assert secret not in f"{caught.value} {caught.value.fix}"
    assert "Client Error(403)" in str(caught.value)


def test_credentials_open_the_index(tmp_path: Path, cache: Path) -> None:
    wanted = "Basic " + base64.b64encode(b"user:s3cret").decode()
    with server(site(tmp_path), authorization=wanted) as (address, _):
        with pytest.raises(SourceError, match="401"):
            resolve(SPEC, cache=cache, settings=at(address, prompt=False))
        named = at(address.replace("http://", "http://user:s3cret@"), prompt=False)
        assert contents(resolve(SPEC, cache=cache, settings=named)) == PACKAGE


# The cache


def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_cache({CACHE_VARIABLE: str(tmp_path / "c")}) == tmp_path / "c"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache({}).name == "porter"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache({CACHE_VARIABLE: "~/c"}) == tmp_path / "c"


def test_environment_decides_all(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "named"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    assert resolve(SPEC).root.is_relative_to(tmp_path / "named")


@pytest.mark.parametrize("offline", [False, True])
def test_cache_that_cannot_be_made(shelf: Path, tmp_path: Path, offline: bool) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError) as caught:
        resolve(SPEC, offline=offline, cache=tmp_path / "file" / "cache", settings=links(shelf))
    assert caught.value.fix
    if not offline:
        assert CACHE_VARIABLE in caught.value.fix


FULL = """
import resource, signal, sys
from pathlib import Path
from porter.errors import SourceError
from porter.sources.index import PipSettings
from porter.sources.resolve import resolve
from porter.sources.spec import DistributionSpec
SPEC = DistributionSpec("demo", "demo", "1.0", ("demo",))
links = lambda folder: PipSettings(find_links=(str(folder),), no_index=True)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
try:
    resolve(SPEC, cache=Path(sys.argv[2]), settings=links(Path(sys.argv[1])))
except SourceError as error:
    print(error.fix)
"""


def test_full_disk_while_downloading(shelf: Path, cache: Path) -> None:
    done = run(FULL, shelf, cache)
    assert done.stdout.startswith("free some space"), done.stderr
    assert leftovers(cache) == []
    assert contents(resolve(SPEC, cache=cache, settings=links(shelf))) == PACKAGE


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.sources.builders import Recorder
from porter.sources.index import PipSettings
from porter.sources.resolve import resolve
from porter.sources.spec import DistributionSpec
SPEC = DistributionSpec("demo", "demo", "1.0", ("demo",))
links = lambda folder: PipSettings(find_links=(str(folder),), no_index=True)
def act(label, done):
    if label.startswith(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
resolve(SPEC, cache=Path(sys.argv[2]), settings=links(Path(sys.argv[1])), progress=Recorder(act))
"""


@pytest.mark.parametrize("verb", ["downloading", "unpacking"])
@pytest.mark.parametrize("kind", ["sdist", "wheel"])
def test_killed_at_work(tmp_path: Path, cache: Path, verb: str, kind: str) -> None:
    shelf = tmp_path / "shelf"
    (sdist if kind == "sdist" else wheel)(shelf)
    done = run(KILLED, shelf, cache, Path(verb))
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert leftovers(cache) != []
    with pytest.raises(OfflineError) if verb == "downloading" else nullcontext():
        resolve(SPEC, offline=True, cache=cache)
    found = resolve(SPEC, cache=cache, settings=links(shelf))
    assert contents(found) == PACKAGE
    assert leftovers(cache) == []


def _together(arguments: tuple[Path, Path, str]) -> tuple[str, str, int, int]:
    shelf, cache, barrier = arguments
    folder = Path(barrier)
    (folder / str(os.getpid())).touch()
    while len(list(folder.iterdir())) < 2:
        pass
    shown = Recorder()
    # The digest is known, as it is from the lock, so that the second one finds the work done.
    record = Record(sha256=sha256(shelf / "demo-1.0.tar.gz"))
    found = resolve(SPEC, lock_record=record, cache=cache, settings=links(shelf), progress=shown)
    assert contents(found) == PACKAGE
    return str(found.root), found.sha256, len(shown.of("downloading")), len(shown.of("unpacking"))


def test_two_processes_at_once(tmp_path: Path, cache: Path) -> None:
    """Both get the same folder, and one of them did all the work."""
    shelf, barrier = tmp_path / "shelf", tmp_path / "barrier"
    barrier.mkdir()
    many = {f"demo/m{n}.py": "x = 1\n" * 200 for n in range(400)}
    sdist(shelf, {**PACKAGE, **many})
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        first, second = pool.map(_together, [(shelf, cache, str(barrier))] * 2, chunksize=1)
    assert first[:2] == second[:2]
    assert sorted([first[2:], second[2:]]) == [(0, 0), (1, 1)]
    assert leftovers(cache) == []


def test_second_process_says_that_it_waits(shelf: Path, cache: Path) -> None:
    from porter.sources.cache import Cache

    held, shown = Cache(cache), Recorder()
    with held.hold("key", shown):
        assert shown.tasks == []
    script = """
import sys
from pathlib import Path
from porter.sources.cache import Cache
from porter.sources.progress import QuietProgress
with Cache(Path(sys.argv[1])).hold("key", QuietProgress()):
    print("held", flush=True)
    sys.stdin.readline()
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, cache], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ()
    ) as other:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline() == "held\n"

        class Freeing(Recorder):
            def task(self, label: str, total: int | None = None, unit: str = "items"):  # type: ignore[no-untyped-def]
                assert other.stdin is not None
                other.stdin.write("\n")
                other.stdin.flush()
                return super().task(label, total, unit)

        waiting = Freeing()
        with held.hold("key", waiting):
            assert waiting.tasks == ["waiting for another porter to finish key"]


def test_every_error_names_its_fix(shelf: Path, cache: Path) -> None:
    raised: list[PorterError] = []
    for spec, record, offline in (
        (SPEC, None, True),
        (SPEC, Record(), False),
        (replace(SPEC, version="9"), None, False),
        (replace(SPEC, package_dirs=("x",)), None, False),
    ):
        with pytest.raises(PorterError) as caught:
            resolve(spec, lock_record=record, offline=offline, cache=cache, settings=links(shelf))
        raised.append(caught.value)
    assert len(raised) == 4
    assert all(error.fix and error.exit_code == 3 for error in raised)


@pytest.mark.network
def test_pinned_engine_through_the_configured_index(tmp_path: Path) -> None:
    spec = DistributionSpec("deepinfer", "deepinfer", "0.1.0", ("deepinfer",))
    found = resolve(spec, cache=tmp_path, settings=read_settings())
    assert found.filename == "deepinfer-0.1.0.tar.gz"
    assert found.sha256 == "959b9bd010893b4c6dc60be0dd822e10e7f1ae1e53289233a83741f76c3d681a"
    assert (found.root / "deepinfer/model_executor/layers/tilelang_ops/ops.py").is_file()
    assert resolve(spec, offline=True, cache=tmp_path) == found
