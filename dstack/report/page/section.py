"""A section of a page: its HTML, and the charts in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dstack.visible import visible

if TYPE_CHECKING:
    from bokeh.models import Plot

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Section:
    """One section of a page.

    ``key`` is its anchor, ``body`` its HTML. ``charts`` are drawn in the elements of the body with these ids.
    ``script`` names a file of ``assets`` that handles its clicks and keys.
    """

    key: str
    title: str
    body: Markup
    charts: Mapping[str, Plot] = field(default_factory=dict)
    script: str | None = None


def render(template: str, **values: Any) -> Markup:
    """The HTML of a file of ``templates``; every text in it is made visible, and escaped."""
    return Markup(_templates().get_template(template).render(values))


def asset(name: str) -> str:
    """The text of a file of ``assets``."""
    return (FOLDER / "assets" / name).read_text()


@cache
def _templates() -> Environment:
    return Environment(
        autoescape=True,
        finalize=_visible,
        loader=FileSystemLoader(FOLDER / "templates"),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )


def _visible(value: object) -> object:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
