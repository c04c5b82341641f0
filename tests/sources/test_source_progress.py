"""Progress on a terminal and in a pipe."""

from __future__ import annotations

import io

import pytest

from porter.sources.progress import Progress, QuietProgress, TerminalProgress, progress_for


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_INTERACTIVE", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def work(progress: Progress) -> None:
    with progress.task("downloading [bold]demo", unit="bytes") as outer:
        outer.resize(4_000_000)
        outer.advance(4_000_000)
        with progress.task("unpacking demo", 2) as inner:
            inner.advance(1)
            inner.advance(1)


def test_bars_on_a_terminal() -> None:
    stream = Terminal()
    shown = progress_for(stream)
    assert isinstance(shown, TerminalProgress)
    work(shown)
    work(shown)
    text = stream.getvalue()
    assert "downloading [bold]demo" in text
    assert "4.0/4.0 MB" in text
    assert "unpacking demo" in text
    assert "/2" in text


def test_nothing_in_a_pipe() -> None:
    stream = io.StringIO()
    shown = progress_for(stream)
    assert isinstance(shown, QuietProgress)
    work(shown)
    assert stream.getvalue() == ""


def test_bars_end_with_a_failure() -> None:
    stream = Terminal()
    shown = TerminalProgress(stream)
    with pytest.raises(RuntimeError), shown.task("breaking"):
        raise RuntimeError
    work(shown)
    assert "unpacking demo" in stream.getvalue()
