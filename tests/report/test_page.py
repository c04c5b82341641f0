"""The HTML report: what it says, that it is valid and self-contained, and how it is written."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import report_data

from porter.report.errors import ReportError
from porter.report.html import MARK, render_page, write_page
from porter.report.results import parse_results, read_all

ROOT = Path(__file__).resolve().parents[2]


class _Reader(HTMLParser):
    """Texts of the names' rows by their first cell, elements by name, and every address that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, list[str]] = {}
        self.elements: list[str] = []
        self.fetched: list[str] = []
        self._row: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        values = dict(attrs)
        self.fetched += [str(value) for name in ("src", "href") if (value := values.get(name))]
        if tag == "tr":
            self._row = []
        elif tag in ("td", "th") and self._row is not None:
            self._row.append("")
        elif tag == "br":
            self.handle_data(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag == "tr" and self._row and len(self._row) == 11:
            self.rows[self._row[0].strip()] = [" ".join(cell.split()) for cell in self._row]
            self._row = None

    def handle_data(self, data: str) -> None:
        if self._row:
            self._row[-1] += data


def _read(html: str) -> _Reader:
    reader = _Reader()
    reader.feed(html)
    reader.close()
    return reader


def test_a_row_says_everything() -> None:
    row = _read(render_page(report_data.page())).rows["norm_tl"]
    assert row[1] == "factories" and row[2] == "implemented stale override"
    assert "asc/norm.py:31" in row[3] and "generated/norm.py" in row[3] and "overrides/norm.py" in row[3]
    assert row[4] == "9 passed, 1 failed, 2 skipped" and row[5] == "1.5e-03"
    assert row[6:] == ["12.5", "1", "2.0 KiB", "2,350.5", "SIM104, SIM107 (1 allowed)"]


def test_what_was_not_measured_is_said_with_the_command() -> None:
    html = render_page(report_data.page(measured=False, compared=False))
    row = _read(html).rows["norm_tl"]
    assert row[4:] == ["–"] * 7
    assert html.count("porter verify --device sim --json sim.json") == 2
    assert html.count("porter verify --json cpu.json") == 2
    assert "no source in the cache" in html


def test_estimates_are_called_so() -> None:
    html = render_page(report_data.page())
    assert "Times: estimate from published constants, not measured" in html and "times an estimate" in html


def test_nothing_hostile_gets_through() -> None:
    html = render_page(report_data.page())
    assert html.count("<script>") == html.count("</script>") == 1
    assert "<img" not in html and "onerror=alert(1)&gt;" in html


def test_it_fetches_nothing() -> None:
    html = render_page(report_data.page())
    reader = _read(html)
    assert set(reader.fetched) <= {"#names", "#device", "#tests", "#drift", "#sources", "data:,"}
    assert "default-src 'none'" in html and not re.search(r"https?://|@import|url\(", html)
    assert not {"link", "script", "img"} & set(reader.elements) - {"link", "script"}


@pytest.mark.parametrize("measured", [True, False])
def test_it_is_valid_html5(measured: bool) -> None:
    html5lib = pytest.importorskip("html5lib", reason="html5lib is not installed")
    html5lib.HTMLParser(strict=True).parse(render_page(report_data.page(measured=measured, compared=measured)))


def test_bytes_are_the_same_each_time() -> None:
    assert render_page(report_data.page()) == render_page(report_data.page())


def test_writing(tmp_path: Path) -> None:
    target = tmp_path / "new" / "report.html"
    assert write_page(report_data.page(), target)
    first = target.read_bytes()
    assert not write_page(report_data.page(), target), "nothing changed"
    assert write_page(report_data.page(measured=False), target), "a report replaces a report"
    assert [path.name for path in target.parent.iterdir()] == ["report.html"] and target.read_bytes() != first
    foreign = tmp_path / "notes.html"
    foreign.write_text("mine")
    with pytest.raises(ReportError, match="porter did not write") as raised:
        write_page(report_data.page(), foreign)
    assert foreign.read_text() == "mine" and "--force" in (raised.value.fix or "")
    foreign.write_text(f"mine {'x' * 5000} {MARK}")
    with pytest.raises(ReportError, match="porter did not write"):
        write_page(report_data.page(), foreign)
    assert write_page(report_data.page(), foreign, force=True)
    (tmp_path / "empty.html").touch()
    assert write_page(report_data.page(), tmp_path / "empty.html")
    with pytest.raises(ReportError, match="is a folder"):
        write_page(report_data.page(), tmp_path)


def test_results_are_checked(tmp_path: Path) -> None:
    plain, simulated = tmp_path / "cpu.json", tmp_path / "sim.json"
    plain.write_text(json.dumps(report_data.results_json()))
    simulated.write_text(json.dumps(report_data.results_json(True)))
    tests, device = read_all([simulated, plain])
    assert tests is not None and device is not None and device.simulated and not tests.simulated
    assert read_all([]) == (None, None)
    with pytest.raises(ReportError, match="a second run on a torch device"):
        read_all([plain, simulated, plain])
    for text in (
        "",
        "[]",
        "{}",
        '{"version": 2}',
        '{"version": 1}',
        '{"version": 1, "environment": {}, "factories": [{}]}',
    ):
        plain.write_text(text)
        with pytest.raises(ReportError):
            read_all([plain])
    with pytest.raises(ReportError, match="cannot be read"):
        read_all([tmp_path / "absent.json"])


def test_results_without_a_device_part_are_read() -> None:
    data = report_data.results_json()
    del data["simulated"]
    for row in data["factories"]:
        del row["simulated"]
    assert parse_results(data, "old.json").costs == {}


def test_the_project_itself(tmp_path: Path) -> None:
    """Every name of ``porter status`` has its row, with upstream's line; a second run changes nothing."""
    target = tmp_path / "report.html"
    (tmp_path / "sim.json").write_text(json.dumps(report_data.results_json(True)))
    command = [sys.executable, "-m", "porter", "report", "--html", str(target), "--results", str(tmp_path / "sim.json")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    html = target.read_text(encoding="utf-8")
    rows = _read(html).rows
    status = subprocess.run(
        [sys.executable, "-m", "porter", "status", "--json"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
        timeout=300,
    )
    states = json.loads(status.stdout)
    for identity, state in states["factory_states"].items():
        row = rows[identity.rpartition(".")[2]]
        assert row[1] == "factories" and row[2].split()[0] == state
        assert re.search(r"tilelang_ops/asc/\S+\.py:[1-9]\d* ", row[3] + " "), row
    total = states["factories"]["total"] + sum(row["total"] for row in states["vendor"].values())
    assert html.count('data-state="') >= total
    assert sum("deep_gemm" == row[1] for row in rows.values()) == states["vendor"]["deep_gemm"]["total"]
    assert str(ROOT) not in html and str(tmp_path) not in html
    assert rows["norm_tl"][4].startswith("9 passed") and rows["norm_tl"][6] == "12.5"


def test_a_page_with_other_rows_differs() -> None:
    page = report_data.page()
    assert render_page(replace(page, rows=page.rows[:1])) != render_page(page)
