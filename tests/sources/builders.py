"""Archives, indexes and servers made for a test, tiny and on this machine."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PACKAGE = {"demo/__init__.py": '__version__ = "1.0"\n', "demo/kernels/norm.py": "def norm(x):\n    return x\n"}
SETUP = "import pathlib\npathlib.Path(__file__).with_name('ran').write_text('setup.py was run')\n"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def entry(name: str, content: bytes = b"x = 1\n", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    """A tar member; ``fields`` are set on its header."""
    info = tarfile.TarInfo(name)
    for key, value in fields.items():
        setattr(info, key, value)
    info.size = len(content) if info.isreg() else 0
    return info, content if info.isreg() else b""


def tar(path: Path, members: Iterable[tuple[tarfile.TarInfo, bytes]], kind: str = "gz") -> Path:
    """A compressed tar archive of exactly these members."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, f"w:{kind}", format=tarfile.PAX_FORMAT) as bundle:
        for info, content in members:
            bundle.addfile(info, io.BytesIO(content))
    return path


def zipped(path: Path, members: Iterable[tuple[str | zipfile.ZipInfo, bytes | str]]) -> Path:
    """A zip archive of exactly these members."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, content in members:
            bundle.writestr(name, content)
    return path


def sdist(folder: Path, files: Mapping[str, str] = PACKAGE, name: str = "demo", version: str = "1.0") -> Path:
    """A source archive with a setup.py that leaves a trace if it is ever run."""
    top = f"{name}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    content = {"PKG-INFO": metadata, "setup.py": SETUP, **files}
    return tar(folder / f"{top}.tar.gz", (entry(f"{top}/{path}", text.encode()) for path, text in content.items()))


def wheel(
    folder: Path,
    files: Mapping[str, str] = PACKAGE,
    name: str = "demo",
    version: str = "1.0",
    tag: str = "py3-none-any",
) -> Path:
    """A wheel."""
    info = f"{name}-{version}.dist-info"
    content = {**files, f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"}
    return zipped(folder / f"{name}-{version}-{tag}.whl", content.items())


def page(files: Iterable[tuple[str, str]]) -> str:
    """A PEP 503 page: (file's address, text of the fragment or "")."""
    anchors = (
        f'<a href="{address}{"#" + fragment if fragment else ""}">{address.rsplit("/", 1)[-1]}</a>'
        for address, fragment in files
    )
    return f"<!DOCTYPE html><html><body>{''.join(anchors)}</body></html>"


def disk_index(root: Path, files: Mapping[Path, str], project: str = "demo") -> str:
    """A simple index in a folder; gives its address. ``files``: archive to the fragment shown for it."""
    folder = root / "simple" / project
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.html").write_text(page((path.as_uri(), fragment) for path, fragment in files.items()))
    return (root / "simple").as_uri()


@dataclass
class Reply:
    """What a test server answers."""

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    # Say that the body is longer than it is, then hang up.
    cut: bool = False


Handler = Callable[[str, int], Reply]


@contextmanager
def server(handler: Handler, authorization: str = "") -> Iterator[tuple[str, list[str]]]:
    """An HTTP server on this machine; gives its address and the paths asked for.

    ``handler`` takes the path and how often it was asked for before. ``authorization``: the header without which
    everything is refused.
    """
    asked: list[str] = []
    guard = threading.Lock()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with guard:
                before = asked.count(self.path)
                asked.append(self.path)
            known = not authorization or self.headers.get("Authorization") == authorization
            reply = handler(self.path, before) if known else Reply(status=401)
            self.send_response(reply.status)
            for key, value in {"Content-Type": "text/html", **reply.headers}.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(reply.body) + (100 if reply.cut else 0)))
            self.end_headers()
            self.wfile.write(reply.body)
            self.close_connection = reply.cut

        def log_message(self, *_: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_address[1]}", asked
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


class Recorder:
    """Progress that remembers its tasks: label, total and what was advanced."""

    def __init__(self, act: Callable[[str, int], None] | None = None) -> None:
        self.tasks: list[str] = []
        self.advanced: dict[str, int] = {}
        self.totals: dict[str, int | None] = {}
        self.act = act

    @contextmanager
    def task(self, label: str, total: int | None = None, unit: str = "items") -> Iterator[_Recorded]:
        self.tasks.append(label)
        self.totals[label] = total
        self.advanced.setdefault(label, 0)
        yield _Recorded(self, label)

    def of(self, verb: str) -> list[str]:
        return [label for label in self.tasks if label.startswith(verb)]


@dataclass
class _Recorded:
    owner: Recorder
    label: str

    def advance(self, amount: int) -> None:
        self.owner.advanced[self.label] += amount
        if self.owner.act is not None:
            self.owner.act(self.label, self.owner.advanced[self.label])

    def resize(self, total: int | None) -> None:
        self.owner.totals[self.label] = total


def environ() -> dict[str, str]:
    """Environment of a Python that finds what this one finds.

    It writes no byte code: a process whose files are cut short would leave broken byte code for everybody.
    """
    found = os.pathsep.join(path for path in sys.path if path)
    return {**os.environ, "PYTHONPATH": found, "PYTHONDONTWRITEBYTECODE": "1"}


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a script in a Python of its own."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ(), timeout=120)
