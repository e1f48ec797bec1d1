"""Texts for users are in plain technical English: none of the banned words occurs in them."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import click
import msgspec
import pytest

import dstack
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.cli import main
from dstack.pytest_plugin.fixture import Dstack, Watch
from dstack.report.check_schema import check_schema
from dstack.report.text import report_text
from dstack.snapshot_file import load
from tests.paths import ROOT

SOURCES = sorted((ROOT / "dstack").rglob("*.py"))
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
RECORDED = sorted((ROOT / "tests" / "recorded").rglob("*.json.gz"))
DOCUMENTS = sorted(
    [
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
)
BANNED = re.compile(
    r"\b(?:somebody|nobody|anybody|everybody|whoever|whom|told|a look(?!-alike)|looked at|senseless|ways? out)\b",
    re.IGNORECASE,
)
EXCEPTIONS: tuple[tuple[str, str, str], ...] = ()
"""Where a word may occur: the file, or a part of the text; the word; and the reason."""


class Text(NamedTuple):
    """A text that users read, and where it is from: a file, a command or a public name."""

    where: str
    text: str


def strings(path: Path) -> Iterator[Text]:
    """The string constants of a source file, parts of f-strings too; without docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield Text(f"{path.relative_to(ROOT)}:{node.lineno}", node.value)


def docstrings(path: Path) -> Iterator[Text]:
    """The docstrings of a source file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield Text(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", ast.get_docstring(node) or "")


def help_texts() -> Iterator[Text]:
    """The help of each command and of each of its options."""
    for name, command in {"dstack": main, **main.commands}.items():
        yield Text(f"help of {name}", command.help or "")
        options = (one for one in command.params if isinstance(one, click.Option))
        yield from (Text(f"help of {name} {one.opts[0]}", one.help or "") for one in options)


def public_docstrings() -> Iterator[Text]:
    """The docstrings of what dstack exports and of the pytest fixture, with their public methods."""
    exported = {name: getattr(dstack, name) for name in dstack.__all__ if name != "__version__"}
    for name, public in {"dstack": dstack, **exported, "the fixture": Dstack, "Watch of the fixture": Watch}.items():
        yield Text(f"docstring of {name}", inspect.getdoc(public) or "")
        for part, member in vars(public).items() if inspect.isclass(public) else ():
            if not part.startswith("_"):
                yield Text(f"docstring of {name}.{part}", inspect.getdoc(member) or "")


def schema_texts() -> Iterator[Text]:
    """The descriptions in the JSON Schemas of snapshots and of ``check --json``."""
    for name, schema in {"snapshot": msgspec.json.schema(dstack.Snapshot), "check": check_schema()}.items():
        yield from (Text(f"schema of {name}", text) for text in descriptions(schema))


def descriptions(schema: object) -> Iterator[str]:
    match schema:
        case dict():
            yield from (value for key, value in schema.items() if key == "description" and isinstance(value, str))
            yield from (text for value in schema.values() for text in descriptions(value))
        case list():
            yield from (text for value in schema for text in descriptions(value))


def paragraphs(path: Path) -> Iterator[Text]:
    """The paragraphs of a document, or its whole tables."""
    for match in re.finditer(r"(?:.+\n?)+", path.read_text(encoding="utf-8")):
        line = match.string.count("\n", 0, match.start()) + 1
        yield Text(f"{path.relative_to(ROOT)}:{line}", match[0])


def banned(texts: Iterable[Text]) -> list[str]:
    """Each banned word with its place and text, but for the exceptions."""
    return [
        f"{where}: {match[0]!r} in {match.string[max(0, match.start() - 60) : match.end() + 60]!r}"
        for where, text in texts
        for match in BANNED.finditer(" ".join(text.split()))
        if not any(is_exception(one, Text(where, text), match[0]) for one in EXCEPTIONS)
    ]


def is_exception(exception: tuple[str, str, str], found: Text, word: str) -> bool:
    place, allowed, _ = exception
    return word.lower() == allowed and (found.where.startswith(place) or place in found.text)


def all_texts() -> Iterator[Text]:
    yield from (text for path in SOURCES for text in strings(path))
    yield from help_texts()
    yield from public_docstrings()
    yield from schema_texts()
    yield from (text for path in DOCUMENTS for text in paragraphs(path))
    yield from (text for path in EXAMPLES for text in docstrings(path))


def test_messages_have_no_banned_word() -> None:
    assert banned(text for path in SOURCES for text in strings(path)) == []


def test_help_texts_have_no_banned_word() -> None:
    assert banned(help_texts()) == []


def test_public_docstrings_have_no_banned_word() -> None:
    assert banned(public_docstrings()) == []


def test_schemas_have_no_banned_word() -> None:
    assert banned(schema_texts()) == []


def test_documents_have_no_banned_word() -> None:
    assert banned(text for path in DOCUMENTS for text in paragraphs(path)) == []


def test_docstrings_of_examples_have_no_banned_word() -> None:
    assert banned(text for path in EXAMPLES for text in docstrings(path)) == []


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.partition(".")[0])
def test_reports_of_recorded_examples_have_no_banned_word(path: Path) -> None:
    taken = load(path)
    report = report_text(AnalysedSnapshot.of(taken))

    assert banned(Text(f"report of {path.name}", line) for line in report.splitlines()) == []


@pytest.mark.parametrize(
    "text", ["Told are deadlocks", "take a\nlook", "a look, confirmed", "Way out: none", "by whom"]
)
def test_a_banned_word_is_found(text: str) -> None:
    assert len(banned([Text("here", text)])) == 1


@pytest.mark.parametrize("text", ["a look-alike", "untold", "looked atom", "stolid", "two looks"])
def test_other_words_are_not_banned(text: str) -> None:
    assert banned([Text("here", text)]) == []


def test_every_kind_of_text_is_found() -> None:
    found = {text for _, text in all_texts()}

    assert "Internal error in dstack: " in found  # a part of an f-string
    assert "Maximum number of snapshots to keep." in found
    assert any(text.startswith("Take a snapshot and return its diagnosis") for text in found)
    assert any(text.startswith("A suspended asyncio task of a process") for text in found)  # in a schema
    assert any("| `Cancelled.` |" in text for text in found)
    assert not any(text.startswith("Texts for users") for text in found)


def test_every_exception_is_needed() -> None:
    found = [(text, match[0]) for text in all_texts() for match in BANNED.finditer(text.text)]

    assert [one for one in EXCEPTIONS if not any(is_exception(one, text, word) for text, word in found)] == []
