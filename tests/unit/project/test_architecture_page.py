"""The architecture page and the folder listing say the same."""

from __future__ import annotations

import re

import pytest

from tests.paths import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
PACKAGE = ROOT / "dstack"
FOLDERS = {f"{path.parent.relative_to(PACKAGE)}/" for path in PACKAGE.rglob("__init__.py")} - {"./"}
PATH = re.compile(r"`([\w/]+(?:\.py|/))`")


def test_the_table_is_short_and_each_folder_is_in_it_or_below_one_that_is() -> None:
    named = re.findall(r"^\| `([\w/]+/)` \|", PAGE, re.MULTILINE)

    assert len(named) == len(set(named)) <= 30
    assert set(named) - {"dstack/"} <= FOLDERS
    assert [folder for folder in FOLDERS if not folder.startswith(tuple(named))] == []


@pytest.mark.parametrize("text", [PAGE, CONTRIBUTING], ids=["architecture", "contributing"])
def test_each_path_exists(text: str) -> None:
    paths = set(PATH.findall(text))

    assert len(paths) > 10
    assert [path for path in paths if not any((home / path).exists() for home in (ROOT, PACKAGE))] == []


def test_each_name_in_the_steps_exists() -> None:
    """Names such as `FindingKind` that a reader will search for."""
    sources = "\n".join(path.read_text() for home in (PACKAGE, ROOT / "tests") for path in home.rglob("*.py"))
    names = set(re.findall(r"`([A-Z]\w+)`", PAGE + CONTRIBUTING))

    assert {name for name in names if not re.search(rf"\b{name}\b", sources)} == set()
