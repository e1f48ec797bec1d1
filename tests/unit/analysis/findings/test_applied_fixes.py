"""The recorded report of an example has the fix that was applied to it."""

from pathlib import Path

import pytest

from tests.examples.applied_fixes import APPLIED, OF_KINDS, Applied
from tests.examples.recorded import document_of, recorded


@pytest.mark.parametrize("applied", APPLIED, ids=lambda one: f"{one.example}: {one.words}")
def test_the_report_on_an_example_has_the_fix_that_was_applied(applied: Applied) -> None:
    document = document_of(recorded(applied.example))

    advices = filter(None, (one["advice"] for one in document["findings"]))
    fixes = [advice["text"] for advice in advices if advice["kind"] == "fix"]
    assert any(applied.words in text for text in fixes), fixes


@pytest.mark.parametrize("applied", APPLIED, ids=lambda one: f"{one.example}: {one.words}")
def test_a_fix_can_be_applied(applied: Applied, tmp_path: Path) -> None:
    compile(applied.write(tmp_path).read_text(), applied.example, "exec")


@pytest.mark.parametrize("kind", OF_KINDS)
def test_the_fix_of_a_kind_is_that_of_a_finding_of_the_kind(kind: str) -> None:
    for applied in OF_KINDS[kind]:
        findings = document_of(recorded(applied.example))["findings"]
        assert any(applied.words in one["advice"]["text"] for one in findings if one["kind"] == kind)
