"""The list of cures as text."""

from __future__ import annotations

import pytest

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.breaks import breaks_of
from dstack.files.snapshot_file import load
from dstack.report.cure_text import NO_DEADLOCK, print_cures
from dstack.report.rich_text import plain_text
from tests.examples.recorded import NAMES, recorded

MOST_LINES = 30
"""A screen: what one deadlock takes at most."""


def text_of(name: str) -> str:
    analysed = AnalysedSnapshot.of(load(recorded(name)))
    breaks = breaks_of(analysed.first_index, analysed.diagnosis)
    return plain_text(lambda console: print_cures(console, analysed, breaks), 100)


def test_each_change_says_what_it_frees_and_where_it_is() -> None:
    lines = text_of("two_actors").splitlines()

    assert lines[3] == "1. raise max_concurrency of Cashier to 2 (now 1): frees all 4."
    assert lines[5] == "3. return the ObjectRef instead of ray.get in Cashier.order: frees all 4."
    assert lines[6].endswith("two_actors.py:22   meal: str = ray.get(kitchen.cook.remote(dish))")
    assert lines[8:10] == [
        "Not enough:",
        "-  return the ObjectRef instead of ray.get in Kitchen.cook: frees 1 of 4; Cashier.is_paid,",
    ]
    assert lines[-4:-2] == [
        "Break it now: dstack cure --break Cashier.order",
        "                cancels Cashier.order, which ends with an error: frees the other 3.",
    ]


def test_a_change_that_only_moves_the_deadlock_is_said_to() -> None:
    assert (
        "-  raise max_concurrency of Member to 2 (now 1): frees nothing: another Member.pass_token would wait\n"
        "   in the same way." in text_of("ring_of_five")
    )


def test_what_is_not_certain_is_probable() -> None:
    assert "1. raise max_concurrency of Gate to 3 (now 2): probably frees all 4." in text_of("hangs/gate_without_slot")


def test_without_a_deadlock_it_says_so_and_has_the_advice() -> None:
    shown = text_of("hangs/too_many_gpus")

    assert shown.startswith(f"HANG  {NO_DEADLOCK}")
    assert "Fix: " in shown


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("hangs/")])
def test_a_list_fits_on_a_screen(name: str) -> None:
    if not recorded(name).exists():
        pytest.fail(f"{name} is not recorded")
    shown = text_of(name)

    assert all(len(line) <= 100 for line in shown.splitlines())
    assert len(shown.splitlines()) <= MOST_LINES
