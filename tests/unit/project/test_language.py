"""Source code and texts for users are in plain technical English: no banned word occurs in them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import load
from dstack.report.text import report_text
from tests.paths import ROOT

FOLDERS = ("dstack", "tests", "benchmarks", "docs_hooks")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if path != Path(__file__))
"""All source files, except this one, which contains the banned words."""
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
RECORDED = sorted((ROOT / "tests" / "recorded").rglob("*.json.gz"))
DOCUMENTS = sorted(
    [
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
)
WORDS = (
    "somebody|nobody|anybody|everybody|whoever|whom|who|told|teller|knot|circle|deed|lull|senseless"
    "|look|looks|looked|looking|ways? out"
)
IN_SOURCE = re.compile(
    rf"(?:(?<![A-Za-z])|(?<=\\n))(?:{WORDS})(?![a-z])"
    rf"|(?<![A-Z])(?:{WORDS.title()})(?![a-z])"
    rf"|(?<![A-Za-z])(?:{WORDS.upper()})(?![A-Za-z])"
)
"""The words in docstrings, comments and strings, and as parts of identifiers, with underscores or in camel case."""
IN_TEXT = re.compile(
    r"\b(?:somebody|nobody|anybody|everybody|whoever|whom|told|a look(?!-alike)|looked at|senseless|ways? out)\b",
    re.IGNORECASE,
)
"""Documents and reports may use ``who`` and ``look like`` in their usual sense."""
EXCEPTIONS = {
    r"\blook_s\b": "a parameter of the public function dstack.guard",
    r'"looking"': "an event of dstack watch, which users filter by its name",
    r"(?i:look[-_]alikes?)": "the name of the healthy programs among the examples",
    r"(?i:\blook(?:s|ed)? (?:for|up|it up)\b)": "the usual words for searching in code, and in a table of names",
    r"the user who runs Ray": "a remedy in messages to users",
}
"""Expressions in which a word may occur in sources, with the reason."""


def banned_in_source(source: str) -> Iterator[str]:
    """The lines of a source text with a banned word."""
    checked = re.sub("|".join(EXCEPTIONS), "", source)
    for match in IN_SOURCE.finditer(checked):
        start, end = checked.rfind("\n", 0, match.start()) + 1, checked.find("\n", match.end())
        yield f"{checked.count(chr(10), 0, start) + 1}: {match[0]!r} in {checked[start:end].strip()!r}"


def banned_in_text(text: str) -> list[str]:
    """The banned words of a text for users, with the words around them."""
    plain = " ".join(text.split())
    return [plain[max(0, match.start() - 60) : match.end() + 60] for match in IN_TEXT.finditer(plain)]


def docstrings(path: Path) -> str:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return "\n\n".join(ast.get_docstring(node) or "" for node in nodes if isinstance(node, documented))


def test_sources_have_no_banned_word() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in SOURCES
        for line in banned_in_source(path.read_text(encoding="utf-8"))
    ]

    assert found == []


def test_names_of_source_files_have_no_banned_word() -> None:
    assert list(banned_in_source("\n".join(str(path.relative_to(ROOT)) for path in SOURCES))) == []


def test_documents_have_no_banned_word() -> None:
    found = {str(path.relative_to(ROOT)): banned_in_text(path.read_text(encoding="utf-8")) for path in DOCUMENTS}

    assert {name: words for name, words in found.items() if words} == {}


def test_docstrings_of_examples_have_no_banned_word() -> None:
    assert {path.name: words for path in EXAMPLES if (words := banned_in_text(docstrings(path)))} == {}


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.partition(".")[0])
def test_reports_of_recorded_examples_have_no_banned_word(path: Path) -> None:
    assert banned_in_text(report_text(AnalysedSnapshot.of(load(path)))) == []


@pytest.mark.parametrize(
    "source",
    [
        "told = 1",
        "def look_again(): pass",
        "class GoneTeller: pass",
        "x = stuckCircle",
        "WHO_WAITS = ()",
        "def f(*, by_whom): pass",
        '"""Nobody waits."""',
        "# who waits",
        'x = "somebody"',
        'x = f"{y} looks {z}"',
        'x = "a\\nlook"',
        "tests/one_look.py",
    ],
)
def test_a_banned_word_is_found_in_each_kind_of_place(source: str) -> None:
    assert len(list(banned_in_source(f"x = 1\n{source}\n"))) == 1


@pytest.mark.parametrize(
    "source", ["WHOLE = whole", "untold = knots", "Look_alike = look_alikes", "circled", "outlook"]
)
def test_parts_of_other_words_are_not_banned_in_sources(source: str) -> None:
    assert list(banned_in_source(source)) == []


@pytest.mark.parametrize(
    "text", ["Told are deadlocks", "take a\nlook", "a look, confirmed", "Way out: none", "by whom"]
)
def test_a_banned_word_is_found(text: str) -> None:
    assert len(banned_in_text(text)) == 1


@pytest.mark.parametrize("text", ["a look-alike", "untold", "looked atom", "stolid", "two looks"])
def test_other_words_are_not_banned(text: str) -> None:
    assert banned_in_text(text) == []


def test_every_exception_is_needed() -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)

    assert [one for one in EXCEPTIONS if not any(map(IN_SOURCE.search, re.findall(one, sources)))] == []
