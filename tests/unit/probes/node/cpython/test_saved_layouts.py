"""The layouts of other versions of Python than the reader's own, which are saved."""

from dstack.probes.node.cpython.saved_layouts import TABLES
from tests.unit.support.own_process import own_layout


def test_the_saved_layout_of_this_version_equals_the_calibrated_one() -> None:
    layout = own_layout()

    assert layout == TABLES[layout.version]


def test_a_layout_is_saved_for_every_version_that_dstack_reads() -> None:
    assert list(TABLES) == [(3, 10), (3, 11), (3, 12), (3, 13), (3, 14)]
