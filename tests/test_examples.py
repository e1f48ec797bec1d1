"""What all examples have in common; that each hangs as it says is for the integration tests."""

from typing import get_args

import pytest

from dstack.diagnosis import VERDICTS, FindingKind
from tests.clusters import EXAMPLES, expected_of

NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_an_example_says_what_to_expect_and_knows_nothing_of_us(name: str) -> None:
    verdict, finding = expected_of(name)

    assert verdict in VERDICTS
    assert finding is None or finding in get_args(FindingKind)
    assert "dstack" not in (EXAMPLES / f"{name}.py").read_text()
