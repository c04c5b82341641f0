"""Unpacking what cannot be trusted."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import resource
import stat
import tarfile
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from porter.errors import ArchiveError, SourceError
from porter.sources.archive import is_archive, unpack, unpacked_tree
from porter.sources.members import Members
from porter.sources.progress import QuietProgress
from porter.sources.rules import DEFAULT_RULES, Limits, UnpackRules
from tests.sources.builders import PACKAGE, Recorder, entry, run, sdist, tar, wheel, zipped

TIGHT = Limits(archive_bytes=1 << 20, total_bytes=1 << 20, file_bytes=1 << 16, members=20, links=3)
DIGEST = "0" * 64


def opened(archive: Path, rules: UnpackRules = DEFAULT_RULES) -> dict[str, str]:
    """Unpack beside the archive; gives path to text."""
    tree = unpack(archive, archive.parent / "out", sha256=DIGEST, progress=QuietProgress(), rules=rules)
    return {path.relative_to(tree).as_posix(): path.read_text() for path in tree.rglob("*") if path.is_file()}


def refused(archive: Path, *words: str, rules: UnpackRules = DEFAULT_RULES) -> ArchiveError:
    """Unpacking fails with an error that names the archive, and leaves nothing behind."""
    before = sorted(archive.parent.rglob("*"))
    outside = sorted(archive.parent.parent.iterdir())
    with pytest.raises(ArchiveError) as caught:
        opened(archive, rules)
    assert caught.value.path == archive.name
    assert caught.value.fix
    for word in words:
        assert word in caught.value.message
    assert sorted(archive.parent.rglob("*")) == before
    assert sorted(archive.parent.parent.iterdir()) == outside
    return caught.value


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_tar_is_unpacked(here: Path, kind: str) -> None:
    members = [
        entry("demo-1.0", type=tarfile.DIRTYPE),
        *(entry(f"demo-1.0/{p}", t.encode()) for p, t in PACKAGE.items()),
    ]
    assert opened(tar(here / f"demo-1.0.tar.{kind}", members, kind)) == {f"demo-1.0/{p}": t for p, t in PACKAGE.items()}


@pytest.mark.parametrize("name", ["demo-1.0.zip", "demo-1.0-py3-none-any.whl", "DEMO.ZIP"])
def test_zip_is_unpacked(here: Path, name: str) -> None:
    assert opened(zipped(here / name, [("demo/", b""), *PACKAGE.items()])) == PACKAGE


def test_long_and_foreign_names_are_kept(here: Path) -> None:
    names = [f"{'d' * 100}/{'e' * 100}/{'f' * 90}.py", "naïve/核.py", "a//./b.py", "./c.py"]
    kept = {f"{'d' * 100}/{'e' * 100}/{'f' * 90}.py", "naïve/核.py", "a/b.py", "c.py"}
    assert set(opened(tar(here / "a.tar.gz", map(entry, names)))) == kept


ESCAPES = [
    "../x.py",
    "a/../../x.py",
    "a/..",
    "/x.py",
    "//x.py",
    "C:x.py",
    "C:/x.py",
    "a\\..\\x.py",
    "a\x01b.py",
    "a\nb.py",
]


@pytest.mark.parametrize("name", ESCAPES)
@pytest.mark.parametrize("unwanted", [False, True])
def test_escaping_tar_member_is_refused(here: Path, name: str, unwanted: bool) -> None:
    """Also when the member is of a kind that would not be unpacked anyway."""
    named = name.replace(".py", ".so") if unwanted else name
    refused(tar(here / "a.tar.gz", [entry("ok.py"), entry(named)]), "member")


@pytest.mark.parametrize("name", ESCAPES)
def test_escaping_zip_member_is_refused(here: Path, name: str) -> None:
    refused(zipped(here / "a.whl", [("ok.py", b""), (name, b"x")]), "member")


def test_escaping_folder_is_refused(here: Path) -> None:
    refused(tar(here / "a.tar.gz", [entry("../d", type=tarfile.DIRTYPE)]), "leads out")


def test_zip_name_with_nul_is_refused(here: Path) -> None:
    """zipfile itself would cut the name short at the NUL."""
    archive = zipped(here / "a.zip", [("aXb.py", b"x")])
    archive.write_bytes(archive.read_bytes().replace(b"aXb.py", b"a\0b.py"))
    refused(archive, "control character")


def test_tar_name_that_is_not_utf8_is_refused(here: Path) -> None:
    with tarfile.open(here / "a.tar.gz", "w:gz", format=tarfile.GNU_FORMAT, encoding="latin-1") as bundle:
        bundle.addfile(tarfile.TarInfo("caf\xe9.py"))
    refused(here / "a.tar.gz", "not UTF-8")


@pytest.mark.parametrize("kind", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.GNUTYPE_SPARSE, b"Z"])
def test_tar_device_is_refused(here: Path, kind: bytes) -> None:
    archive = tar(here / "a.tar.gz", [entry("ok.py"), entry("dev.py", b"", type=kind)])
    refused(archive, "neither a file nor a folder" if kind != tarfile.GNUTYPE_SPARSE else "")


@pytest.mark.parametrize("mode", [stat.S_IFIFO, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFSOCK])
def test_zip_device_is_refused(here: Path, mode: int) -> None:
    info = zipfile.ZipInfo("dev.py")
    info.external_attr = (mode | 0o644) << 16
    refused(zipped(here / "a.zip", [(info, b"")]), "neither a file nor a folder")


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, b"", type=kind, linkname=target)


def zip_link(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


@pytest.mark.parametrize("target", ["/etc/passwd", "../x.py", "../../x.py", "..", "b/../../../x.py", ""])
def test_symbolic_link_that_leads_out_is_refused(here: Path, target: str) -> None:
    depth = "a" if target in ("../../x.py", "b/../../../x.py") else ""
    refused(tar(here / "a.tar.gz", [entry("x.py"), link(f"{depth}/l.py".lstrip("/"), target)]), "leads out")
    if target:
        refused(zipped(here / "a.zip", [(zip_link(f"{depth}/l.py".lstrip("/")), target)]), "leads out")


@pytest.mark.parametrize("target", ["/etc/passwd", "../x.py", "a/../../x.py"])
def test_hard_link_that_leads_out_is_refused(here: Path, target: str) -> None:
    refused(tar(here / "a.tar.gz", [link("l.py", target, tarfile.LNKTYPE)]), "leads out")


def test_writing_through_a_link_is_refused(here: Path) -> None:
    refused(tar(here / "a.tar.gz", [link("d", "e"), entry("d/x.py")]), "folder and a file at once")
    refused(tar(here / "b.tar.gz", [entry("d/x.py"), link("d", "e")]), "folder and a file at once")


def test_links_inside_become_copies(here: Path) -> None:
    members = [
        link("pkg/early.py", "real.py"),
        entry("pkg/real.py", b"r"),
        link("pkg/hard.py", "pkg/real.py", tarfile.LNKTYPE),
        link("pkg/chain.py", "early.py"),
        link("vendored", "pkg"),
        link("deep/through.py", "../vendored/hard.py"),
        link("pkg/gone.py", "missing.py"),
        link("pkg/lib.so", "real.py"),
        link("loop1.py", "loop2.py"),
        link("loop2.py", "loop1.py"),
        link("self", "."),
    ]
    rules = UnpackRules(Limits(links=20))
    files = opened(tar(here / "a.tar.gz", members), rules)
    own = ["early.py", "real.py", "hard.py", "chain.py"]
    assert files == {**{f"pkg/{n}": "r" for n in own}, **{f"vendored/{n}": "r" for n in own}, "deep/through.py": "r"}
    assert not [path for path in (here / "out").rglob("*") if path.is_symlink()]
    assert unpacked_tree(here / "out", sha256=DIGEST, rules=rules)


def test_zip_link_inside_becomes_a_copy(here: Path) -> None:
    archive = zipped(here / "a.whl", [("p/a.py", b"r"), (zip_link("p/b.py"), "a.py")])
    assert opened(archive) == {"p/a.py": "r", "p/b.py": "r"}


def test_copies_of_links_count(here: Path) -> None:
    """Links that multiply one another's files do not get past the limits."""
    members = [entry("d0/a.py", b"x" * 60_000)]
    for level in range(1, 8):
        members += [link(f"d{level}/{n}", f"../d{level - 1}") for n in range(4)]
    limits = replace(TIGHT, links=100, members=10_000)
    refused(tar(here / "a.tar.gz", members), rules=UnpackRules(limits))


@pytest.mark.parametrize("second", ["p/a.py", "p//a.py", "./p/a.py"])
def test_duplicate_is_refused(here: Path, second: str) -> None:
    refused(tar(here / "a.tar.gz", [entry("p/a.py"), entry(second, b"other")]), "stands twice")
    with pytest.warns(UserWarning, match="Duplicate") if second == "p/a.py" else nullcontext():
        archive = zipped(here / "a.zip", [("p/a.py", b"1"), (second, b"2")])
    refused(archive, "stands twice")


@pytest.mark.parametrize(
    "members",
    [
        [entry("a.so"), entry("a.so")],
        [link("a.py", "b.py"), link("a.py", "c.py")],
        [link("a.py", "b.py"), entry("a.py")],
        [entry("a.py"), link("a.py", "b.py")],
    ],
)
def test_duplicate_that_is_not_written_is_refused(here: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    refused(tar(here / "a.tar.gz", members), "stands twice")


def test_stream_longer_than_declared_is_stopped(here: Path) -> None:
    """Whatever a reader gives, no more than the header says is written."""
    members = Members("a.zip", here, DEFAULT_RULES, 1)
    with pytest.raises(ArchiveError, match="larger than its header says"):
        members.write("a.py", io.BytesIO(bytes(1 << 20)), 10)
    assert (here / "a.py").stat().st_size <= 10


@pytest.mark.parametrize("names", [("p", "p/a.py"), ("p/a.py", "p"), ("p.so", "p.so/a.py"), ("p.so/a.py", "p.so")])
def test_file_that_is_a_folder_too_is_refused(here: Path, names: tuple[str, str]) -> None:
    refused(tar(here / "a.tar.gz", map(entry, names)), "folder and a file at once")


def every_prefix(data: bytes) -> list[bytes]:
    return [data[:n] for n in range(len(data))]


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tar.bz2", "a.tar.xz", "a.zip", "a.whl"])
def test_every_truncation_is_refused(here: Path, name: str) -> None:
    if name.startswith("a.tar"):
        archive = tar(here / name, [entry("p/a.py", b"x = 1\n"), entry("p/b.py", b"y = 2\n")], name.rpartition(".")[2])
    else:
        archive = zipped(here / name, [("p/a.py", b"x = 1\n"), ("p/b.py", b"y = 2\n")])
    whole = archive.read_bytes()
    assert opened(archive)
    for cut in every_prefix(whole):
        archive.write_bytes(cut)
        with pytest.raises(ArchiveError, match="truncated or corrupt"):
            unpack(archive, here / "cut", sha256=DIGEST, progress=QuietProgress())
    assert not (here / "cut").exists()


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tar.xz", "a.zip"])
def test_every_damaged_byte_is_refused_or_harmless(here: Path, name: str) -> None:
    """Some bytes mean nothing to the content (a time, a comment); none may change a text or raise anything else."""
    content = {"p/a.py": "x = 1\n" * 3, "p/b.py": "y = 2\n"}
    if name.startswith("a.tar"):
        archive = tar(here / name, [entry(p, t.encode()) for p, t in content.items()], name.rpartition(".")[2])
    else:
        archive = zipped(here / name, content.items())
    whole = archive.read_bytes()
    refusals = 0
    for place in range(len(whole)):
        archive.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            files = opened(archive)
        except ArchiveError as error:
            assert error.path == archive.name
            refusals += 1
        else:
            # A damaged header may hide a member's kind or name, never change what a file says.
            assert set(files.items()) <= set(content.items())
    assert refusals > len(whole) // 2


def _tar_bytes(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytearray:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as bundle:
        for info, content in members:
            bundle.addfile(info, io.BytesIO(content))
    return bytearray(out.getvalue())


def test_damaged_header_does_not_end_the_archive(here: Path) -> None:
    """tarfile alone would take it for the end and drop the rest in silence."""
    raw = _tar_bytes([entry("a.py"), entry("b.py"), entry("c.py")])
    raw[1024 + 20] ^= 0xFF
    (here / "a.tar.gz").write_bytes(gzip.compress(bytes(raw)))
    refused(here / "a.tar.gz", "damaged header")


@pytest.mark.parametrize("size", [1, 511, 513, 1023, 1024 + 100, 1536 + 3])
@pytest.mark.parametrize("name", ["a.py", "a.so"])
def test_tar_cut_inside_whole_compression_is_refused(here: Path, size: int, name: str) -> None:
    raw = _tar_bytes([entry(name, b"x" * 300), entry("b.py", b"y" * 300)])
    (here / "a.tar.gz").write_bytes(gzip.compress(bytes(raw[:size])))
    refused(here / "a.tar.gz", "truncated or corrupt")


@pytest.mark.parametrize("size", [-1, 1 << 62])
@pytest.mark.parametrize("name", ["a.py", "a.so"])
def test_tar_size_that_cannot_be_is_refused(here: Path, name: str, size: int) -> None:
    info, _ = entry(name)
    info.size = size
    header = info.tobuf(tarfile.GNU_FORMAT)
    (here / "a.tar.gz").write_bytes(gzip.compress(header + bytes(4096)))
    refused(here / "a.tar.gz")


def test_tar_header_that_is_too_large_is_stopped_early(here: Path) -> None:
    """An extended header of 256 MiB packs to 256 KiB; it must not be read into memory."""
    size = 256 << 20
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, size
    with gzip.open(here / "a.tar.gz", "wb", compresslevel=1) as out:
        out.write(header.tobuf())
        for _ in range(size >> 20):
            out.write(bytes(1 << 20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(here / "a.tar.gz", "header that is too large")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


@pytest.mark.parametrize("make", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_text_is_no_tar(here: Path, make: Callable[[bytes], bytes]) -> None:
    suffix = {"gzip": "gz", "bz2": "bz2", "lzma": "xz"}[make.__module__]
    (here / f"a.tar.{suffix}").write_bytes(make(b"hello " * 1000))
    refused(here / f"a.tar.{suffix}", "truncated or corrupt")


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tar.bz2", "a.tar.xz", "a.zip", "a.whl"])
@pytest.mark.parametrize("content", [b"", b"<html>404</html>", b"\x1f\x8b", b"PK\x03\x04"])
def test_other_bytes_are_refused(here: Path, name: str, content: bytes) -> None:
    (here / name).write_bytes(content)
    refused(here / name, "truncated or corrupt")


@pytest.mark.parametrize("name", ["a.rar", "a.tar", "a.egg", "tar.gz.txt"])
def test_unknown_format_is_refused(here: Path, name: str) -> None:
    assert not is_archive(name)
    (here / name).write_bytes(b"x")
    refused(here / name, "no known format")


def test_encrypted_zip_member_is_refused(here: Path) -> None:
    archive = zipped(here / "a.zip", [("a.py", b"x")])
    data = bytearray(archive.read_bytes())
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(data)
    assert refused(archive).message == "member 'a.py' is encrypted"


@pytest.mark.parametrize(("offset", "size"), [(24, 2), (24, 1 << 20)])
def test_zip_member_of_another_size_than_stated_is_refused(here: Path, offset: int, size: int) -> None:
    archive = zipped(here / "a.zip", [("a.py", b"x = 1\n" * 10)])
    data = bytearray(archive.read_bytes())
    place = data.index(b"PK\x01\x02") + offset
    data[place : place + 4] = size.to_bytes(4, "little")
    archive.write_bytes(data)
    refused(archive)


ZEROS = bytes(1 << 20)


@pytest.mark.parametrize("name", ["a.py", "a.so"])
def test_bomb_is_refused(here: Path, name: str) -> None:
    """By its ratio, whether or not its members would be unpacked."""
    rules = UnpackRules(Limits(ratio_floor=4 << 20))
    members = [entry(f"{n}/{name}", ZEROS) for n in range(8)]
    refused(tar(here / "a.tar.gz", members), "100 times its size", rules=rules)
    refused(zipped(here / "a.zip", [(f"{n}/{name}", ZEROS) for n in range(8)]), "100 times its size", rules=rules)


def test_bomb_is_refused_by_the_default_rules(here: Path) -> None:
    refused(zipped(here / "a.whl", [(f"{n}.py", ZEROS) for n in range(40)]), "100 times its size")


LIMITS: list[tuple[Limits, str, list[tuple[str, bytes]]]] = [
    (replace(TIGHT, members=3), "more than 3 members", [(f"{n}.py", b"") for n in range(4)]),
    (replace(TIGHT, file_bytes=99), "more than the 99 allowed", [("a.py", os.urandom(100))]),
    (replace(TIGHT, total_bytes=30_000), "30000 bytes", [(f"{n}.py", os.urandom(9_000)) for n in range(4)]),
    (replace(TIGHT, total_bytes=30_000), "30000 bytes", [(f"{n}.so", os.urandom(9_000)) for n in range(4)]),
    (replace(TIGHT, archive_bytes=10), "more than the 10 allowed", [("a.py", b"")]),
]


@pytest.mark.parametrize(("limits", "words", "members"), LIMITS)
def test_limit_is_kept(here: Path, limits: Limits, words: str, members: list[tuple[str, bytes]]) -> None:
    refused(tar(here / "a.tar.gz", [entry(n, c) for n, c in members]), words, rules=UnpackRules(limits))
    refused(zipped(here / "a.zip", members), words, rules=UnpackRules(limits))


def test_links_are_limited(here: Path) -> None:
    members = [entry("a.py"), *(link(f"{n}.py", "a.py") for n in range(4))]
    refused(tar(here / "a.tar.gz", members), "more than 3 links", rules=UnpackRules(TIGHT))


def test_at_the_limit_is_allowed(here: Path) -> None:
    limits = replace(TIGHT, members=3, file_bytes=9_000)
    members = [(f"{n}.py", b"x" * 9_000) for n in range(3)]
    assert len(opened(tar(here / "a.tar.gz", [entry(n, c) for n, c in members]), UnpackRules(limits))) == 3
    assert len(opened(zipped(here / "a.zip", members), UnpackRules(limits))) == 3


@pytest.mark.parametrize("name", [f"{'n' * 256}.py", "d/" * 600 + "a.py", "d/" * 30_000 + "a.so", "é" * 130 + ".py"])
def test_too_long_path_is_refused(here: Path, name: str) -> None:
    refused(tar(here / "a.tar.gz", [entry(name)]), "too long a path")
    refused(zipped(here / "a.zip", [(name, b"")]), "too long a path")


def test_links_cannot_make_a_path_longer(here: Path) -> None:
    members = [entry("a" * 200 + "/" + "b" * 240 + "/c.py")]
    members += [link("/".join(["x" * 200] * 4), "../../../" + "a" * 200)]
    refused(tar(here / "a.tar.gz", members), "too long a path")


def test_many_links_that_wait_for_one_another(here: Path) -> None:
    """Listed last first, each led to by the one before."""
    count = DEFAULT_RULES.limits.links
    members = [*(link(f"d{n}", f"d{n - 1}") for n in range(count, 0, -1)), entry("d0/a.py")]
    assert len(opened(tar(here / "a.tar.gz", members))) == count + 1


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("p/a.py", True),
        ("p/a.PY", True),
        ("p/_C/engine.pyi", True),
        ("csrc/pybind.cpp", True),
        ("k/a.cu", True),
        ("k/a.cuh", True),
        ("k/a.asc", True),
        ("d.dist-info/METADATA", True),
        ("d.dist-info/licenses/LICENSE", True),
        ("d.dist-info/RECORD", True),
        ("PKG-INFO", True),
        ("LICENSE-MIT", True),
        ("MANIFEST.in", True),
        ("p/py.typed", True),
        ("p/lib.so", False),
        ("p/lib.so.1", False),
        ("p/lib.a", False),
        ("p/a.o", False),
        ("p/a.dll", False),
        ("p/a.pyd", False),
        ("p/a.pyc", False),
        ("docs/logo.png", False),
        ("docs/index.html", False),
        ("Makefile", False),
    ],
)
def test_what_is_unpacked(path: str, wanted: bool) -> None:
    assert DEFAULT_RULES.wants(path) is wanted


def test_rules_have_an_identity() -> None:
    assert UnpackRules().digest == DEFAULT_RULES.digest
    others = [UnpackRules(Limits(members=1)), UnpackRules(suffixes=(".py",)), UnpackRules(names=())]
    assert len({rules.digest for rules in (DEFAULT_RULES, *others)}) == 4


def _whole(here: Path) -> Path:
    opened(sdist(here))
    return here / "out"


def test_whole_tree_is_known(here: Path) -> None:
    folder = _whole(here)
    assert unpacked_tree(folder, sha256=DIGEST) == folder / "tree"
    assert unpacked_tree(folder, sha256="1" * 64) is None
    assert unpacked_tree(folder, sha256=DIGEST, rules=UnpackRules(suffixes=(".py",))) is None
    assert unpacked_tree(here / "none", sha256=DIGEST) is None


def _edit(folder: Path) -> None:
    path = next(folder.rglob("norm.py"))
    path.write_text(path.read_text().replace("norm", "mron"))


def _remove(folder: Path) -> None:
    next(folder.rglob("norm.py")).unlink()


def _add(folder: Path) -> None:
    (next(folder.rglob("norm.py")).parent / "new.py").write_text("")


def _empty(folder: Path) -> None:
    path = next(folder.rglob("norm.py"))
    info = path.stat()
    path.write_text("")
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def _link(folder: Path) -> None:
    path = next(folder.rglob("norm.py"))
    path.unlink()
    path.symlink_to("/etc/hostname")


def _unmark(folder: Path) -> None:
    (folder / "unpacked.json").unlink()


def _garble(folder: Path) -> None:
    (folder / "unpacked.json").write_text("[1]")


@pytest.mark.parametrize("harm", [_edit, _remove, _add, _empty, _link, _unmark, _garble])
def test_damaged_tree_is_told_and_made_anew(here: Path, harm: Callable[[Path], None]) -> None:
    folder = _whole(here)
    harm(folder)
    assert unpacked_tree(folder, sha256=DIGEST) is None
    again = opened(here / "demo-1.0.tar.gz")
    assert again["demo-1.0/demo/kernels/norm.py"] == PACKAGE["demo/kernels/norm.py"]
    assert unpacked_tree(folder, sha256=DIGEST)


def test_byte_code_folders_are_no_damage(here: Path) -> None:
    folder = _whole(here)
    cache = next(folder.rglob("norm.py")).parent / "__pycache__"
    cache.mkdir()
    (cache / "norm.cpython-312.pyc").write_bytes(b"x")
    assert unpacked_tree(folder, sha256=DIGEST)


def test_left_partial_folder_is_no_hindrance(here: Path) -> None:
    (here / "out.partial" / "tree").mkdir(parents=True)
    (here / "out.partial" / "tree" / "left.py").write_text("")
    assert "left.py" not in opened(wheel(here))
    assert not (here / "out.partial").exists()


def test_failed_unpacking_keeps_what_was_there(here: Path) -> None:
    folder = _whole(here)
    with pytest.raises(ArchiveError):
        opened(tar(here / "bad.tar.gz", [entry("ok.py"), entry("../x.py")]))
    assert unpacked_tree(folder, sha256=DIGEST)


def test_progress_counts_the_archive(here: Path) -> None:
    for archive in (sdist(here), wheel(here)):
        shown = Recorder()
        unpack(archive, here / "out", sha256=DIGEST, progress=shown)
        (label,) = shown.tasks
        assert label == f"unpacking {archive.name}"
        assert shown.totals[label] == archive.stat().st_size
        assert 0 < shown.advanced[label] <= archive.stat().st_size


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from porter.errors import SourceError
from porter.sources.archive import unpack
from porter.sources.progress import QuietProgress
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    unpack(Path(sys.argv[1]), Path(sys.argv[2]), sha256="0" * 64, progress=QuietProgress())
except SourceError as error:
    print(type(error).__name__, error.fix)
"""


def test_full_disk_is_told_from_a_bad_archive(here: Path) -> None:
    """A file that the system refuses to grow stands for a full disk."""
    archive = tar(here / "a.tar.gz", [entry("a.py", b"x" * 9_000)])
    done = run(FULL_DISK, archive, here / "out")
    assert done.stdout.startswith("SourceError free some space"), done.stderr
    assert [path.name for path in here.iterdir()] == ["a.tar.gz"]


def test_folder_that_cannot_be_made_is_an_error(here: Path) -> None:
    (here / "file").write_text("")
    with pytest.raises(SourceError, match="Not a directory") as caught:
        unpack(sdist(here), here / "file" / "out", sha256=DIGEST, progress=QuietProgress())
    assert not isinstance(caught.value, ArchiveError)
    assert "PORTER_CACHE_DIR" in str(caught.value.fix)
