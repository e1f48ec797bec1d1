"""Every example has a recorded snapshot, which is judged as the example's docstring expects."""

from __future__ import annotations

import gzip

import pytest

from tests.clusters import EXAMPLES
from tests.expected import expected_of
from tests.recorded_examples import NAMES, RECORDED, document_with_report, recorded


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_example_is_judged_as_it_expects(name: str) -> None:
    assert not list(expected_of(EXAMPLES / f"{name}.py").differences(document_with_report(recorded(name))))


def test_no_record_is_of_an_example_that_is_gone() -> None:
    files = {path.relative_to(RECORDED).as_posix().removesuffix(".json.gz") for path in RECORDED.rglob("*.gz")}

    assert files == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_record_has_no_path_of_the_machine_that_recorded_it(name: str) -> None:
    assert b"/root/" not in gzip.decompress(recorded(name).read_bytes())
