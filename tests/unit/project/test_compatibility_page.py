"""docs/compatibility.md names the tested and the supported versions, and no others."""

import re

import pytest

from dstack.version import TESTED_RAYS
from tests.paths import ROOT
from tests.versions.compatibility import PAIRS, SMOKE, Pair

TEXT = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("heading", "pairs"), [("Run at every change", SMOKE), ("Run before a release", PAIRS)])
def test_the_page_names_the_tested_pairs(heading: str, pairs: tuple[Pair, ...]) -> None:
    section = TEXT.partition(f"## {heading}")[2].partition("\n## ")[0]
    named = re.findall(r"^\| ([\d.]+|none) \| ([\d.]+) \|", section, re.MULTILINE)
    tested = ((pair.ray.removesuffix(".0") or "none", pair.python) for pair in pairs)
    assert sorted(named) == sorted([("2.60", "3.11"), *tested])


def test_the_page_names_the_tested_rays() -> None:
    first, last = (".".join(map(str, version)) for version in TESTED_RAYS)
    assert f"tested with Ray {first} and {last}" in TEXT
