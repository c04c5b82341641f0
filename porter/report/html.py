"""The page as one HTML file: styles and script inside, nothing fetched, the same bytes for the same data."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from porter.errors import RenderError
from porter.render.text import templates_folder
from porter.report.errors import ReportError
from porter.report.page import Page
from porter.tree import write_atomic

if TYPE_CHECKING:
    import jinja2

MARK = '<meta name="generator" content="porter report">'
_HEAD = 4096


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_folder() / "report"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=True,
    )
    environment.filters["size"] = size
    environment.filters["number"] = number
    return environment


def size(value: float) -> str:
    """Bytes for a person.

    >>> size(12), size(2048), size(3 << 20)
    ('12 B', '2.0 KiB', '3.0 MiB')
    """
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError


def number(value: float) -> str:
    """A number for a person, whole ones without a point.

    >>> number(3.0), number(1234.56), number(0.25)
    ('3', '1,234.6', '0.2')
    """
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def render_page(page: Page) -> str:
    """The page's HTML.

    Raises:
        RenderError: the template fails.
    """
    import jinja2

    try:
        style, script = (
            (templates_folder() / "report" / name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
        )
        return _environment().get_template("page.html.j2").render(page=page, mark=MARK, style=style, script=script)
    except OSError as error:
        raise RenderError(f"cannot render the report: {error}", fix="install porter again") from error
    except jinja2.TemplateError as error:
        line = getattr(error, "lineno", None)
        raise RenderError(
            f"cannot render the report: {error}",
            path="templates/report/page.html.j2",
            line=line,
            fix="mend the template",
        ) from error


def write_page(page: Page, path: Path, *, force: bool = False) -> bool:
    """Write the page; False when it is there already.

    Raises:
        ReportError: ``path`` is a folder, cannot be written, or holds a file that is no report (unless ``force``).
    """
    data = render_page(page).encode()
    if path.is_dir():
        raise ReportError("is a folder", path=str(path), fix="name a file")
    try:
        if path.exists():
            old = path.read_bytes()
            if old == data:
                return False
            if not force and old and MARK.encode() not in old[:_HEAD]:
                raise ReportError(
                    "holds something that porter did not write", path=str(path), fix="another name, or --force"
                )
        write_atomic(path, data)
    except OSError as error:
        raise ReportError(f"cannot be written: {error.strerror}", path=str(path), fix="another place") from error
    return True
