"""The legend of a graph: the kinds of boxes and links that it has, and their appearance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dstack.report.page.charts.graph_chart import BoxStyle, LinkStyle


@dataclass(frozen=True, slots=True)
class BoxKind:
    """The name of a kind of boxes, and their appearance."""

    text: str
    style: BoxStyle


@dataclass(frozen=True, slots=True)
class LinkKind:
    """The name of a kind of links, and their appearance."""

    text: str
    style: LinkStyle


@dataclass(frozen=True, slots=True)
class Legend:
    """What a graph has, in the order of its legend."""

    boxes: tuple[BoxKind, ...]
    links: tuple[LinkKind, ...]


def legend_of(boxes: Sequence[tuple[str, BoxStyle]], links: Sequence[tuple[str, LinkStyle]]) -> Legend:
    """The legend of these kinds of boxes and links."""
    return Legend(tuple(BoxKind(*one) for one in boxes), tuple(LinkKind(*one) for one in links))
