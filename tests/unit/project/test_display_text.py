"""No code tells calls apart by display text: it compares ids of sites and typed fields."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import get_args

import pytest

from dstack.call_sites import SITES
from dstack.observed.calls import CallKind, GroupLibrary
from tests.paths import ROOT

PACKAGE = ROOT / "dstack"
KINDS = {*get_args(CallKind), *get_args(GroupLibrary)}
"""Values of types, which some sites have as their ids."""
NAMES = (
    {text for site in SITES.values() for text in (site.id, site.name) if text}
    - KINDS
    - {"CompiledDAGFuture", "asyncio"}
)
"""Without the names of a class and of a module, which are also those of waits."""
TABLES = {PACKAGE / "call_sites.py", *(PACKAGE / "libraries").glob("*/__init__.py")}
"""The modules that define sites."""
SOURCES = sorted({*PACKAGE.rglob("*.py")} - TABLES)
TEXTS = ("summary", "advice", "ended_by", "text")
"""Attributes of findings, sites and names of calls that are sentences or words for users."""
WORDED = ("describe", "in_words", "operand_in_words")
"""Functions that put vertices and facts into words."""


def compared_texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The lines on which a literal is the name or id of a site, or words for users are compared."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str() as value) if value in NAMES:
                yield node.lineno, value
            case ast.Compare(left=left, ops=ops, comparators=others) if any(map(_tells_apart, ops)):
                operands = [left, *others]
                if any(isinstance(one, ast.Constant | ast.Attribute) and _is_fixed(one) for one in operands):
                    yield from ((one.lineno, ast.unparse(one)) for one in operands if _is_text(one))
            case ast.Call(func=ast.Attribute(value=value, attr="startswith" | "endswith")) if _is_text(value):
                yield node.lineno, ast.unparse(value)


def _tells_apart(operator: ast.cmpop) -> bool:
    return isinstance(operator, ast.Eq | ast.NotEq | ast.In | ast.NotIn)


def _is_fixed(node: ast.expr) -> bool:
    """Whether an operand is a literal or a constant of a module."""
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Attribute) and node.attr.isupper())


def _is_text(node: ast.expr) -> bool:
    """Whether it is an attribute with words for users, or a call that puts something into words."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in WORDED
    return isinstance(node, ast.Attribute) and node.attr in TEXTS


def test_no_code_compares_display_text() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in SOURCES
        for line, text in compared_texts(ast.parse(path.read_text(encoding="utf-8")))
    ]

    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        'if call.what == "queue.Queue.get": pass',
        'BARRIER = "threading.Barrier.wait"',
        'if describe(vertex) == "unknown waker": pass',
        'if in_words(vertex.never).endswith("has ended"): pass',
        'if finding.summary.startswith("1 driver"): pass',
        'if "Semaphore" in site.ended_by: pass',
    ],
)
def test_display_text_is_found(source: str) -> None:
    assert [*compared_texts(ast.parse(source))]


def test_sites_are_named_for_users() -> None:
    assert len(NAMES) > 100
    assert {*PACKAGE.rglob("*.py")} >= TABLES
