"""Templates and formatting: the two libraries that shape emitted text, each behind one function."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import jinja2

from porter.errors import RenderError
from porter.tree import sha256

LINE_LENGTH = 120


def templates_folder() -> Path:
    """Folder of the templates: beside the package in a checkout, inside it when installed."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "_templates"
    return inside if inside.is_dir() else package.parent / "templates"


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_folder()),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


def templates_digest() -> str:
    """Digest of every template's name and text."""
    rows = [f"{path.name}:{sha256(path.read_bytes())}" for path in sorted(templates_folder().glob("*.j2"))]
    return sha256("\n".join(rows).encode())


def render_template(name: str, context: dict[str, object], *, target: str) -> str:
    """Render one template.

    Raises:
        RenderError: the template cannot be found or fails; ``target`` is the file that it was for.
    """
    try:
        return _environment().get_template(name).render(context)
    except jinja2.TemplateError as error:
        line = getattr(error, "lineno", None)
        raise RenderError(f"cannot render {target}: {error}", path=f"templates/{name}", line=line, fix="mend the template") from error


def format_python(text: str, *, target: str) -> str:
    """Format with black.

    Raises:
        RenderError: the text is not Python.
    """
    import black

    mode = black.Mode(line_length=LINE_LENGTH, target_versions={black.TargetVersion.PY312})
    try:
        return black.format_str(text, mode=mode)
    except black.InvalidInput as error:
        raise RenderError(f"is not valid Python: {error}", path=target, fix="report this: porter or a template is wrong") from error
