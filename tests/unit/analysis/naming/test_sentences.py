from typing import get_args

from dstack.analysis.naming.sentences import PREDICATES
from dstack.diagnosis import WaitKind


def test_each_kind_of_wait_has_a_predicate() -> None:
    assert set(PREDICATES) == set(get_args(WaitKind))
