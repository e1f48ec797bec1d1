"""Texts for users - documents, messages, reports - are in plain technical English: no banned word occurs in them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.unit.project.test_troubleshooting_page import messages

EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
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
"""The words; ``who`` and ``look like`` are allowed in their usual sense."""


def banned_in(text: str) -> list[str]:
    """The banned words of a text for users, with the words around them."""
    plain = " ".join(text.split())
    return [plain[max(0, match.start() - 60) : match.end() + 60] for match in BANNED.finditer(plain)]


def docstrings(path: Path) -> str:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return "\n\n".join(ast.get_docstring(node) or "" for node in nodes if isinstance(node, documented))


def test_documents_and_docstrings_of_examples_have_no_banned_word() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in DOCUMENTS}
    texts |= {path: docstrings(path) for path in EXAMPLES}

    assert {path.name: words for path, text in texts.items() if (words := banned_in(text))} == {}


def test_failure_messages_have_no_banned_word() -> None:
    assert banned_in("\n".join(message.text for message in messages())) == []


@pytest.mark.parametrize("text", ["Told are deadlocks", "take a\nlook", "Way out: none", "by whom"])
def test_a_banned_word_is_found(text: str) -> None:
    assert len(banned_in(text)) == 1
