"""Pages from a child process: what they show, and its failures."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from dstack.errors import DstackError
from dstack.report.page.page_maker import PageMaker
from tests.examples.recorded import RECORDED
from tests.processes import wait_until

FILE = RECORDED / "two_actors.json.gz"


def test_earlier_files_that_are_unreadable_or_of_another_cluster_are_left_out(tmp_path: Path) -> None:
    page = PageMaker().page_of(FILE, [tmp_path / "absent.json", RECORDED / "ring_of_five.json.gz"], job="02000000")

    assert b"Cashier.order and Kitchen.cook wait for each other" in page
    assert b"two_actors.py (02000000) only" in page


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DstackError, match=r"absent\.json: no such file"):
        PageMaker().page_of(tmp_path / "absent.json")


def test_a_page_that_takes_too_long_is_given_up() -> None:
    with pytest.raises(DstackError, match=r"The page was not made within 0\.001 s\."):
        PageMaker(timeout_s=0.001).page_of(FILE)


def test_a_cancelled_page_ends_at_once_and_no_other_begins() -> None:
    maker = PageMaker()

    def cancel() -> None:
        wait_until(lambda: maker._child, deadline_s=60.0, what=lambda: "the child process")
        maker.cancel()

    threading.Thread(target=cancel).start()
    with pytest.raises(DstackError, match=r"The process that makes the page ended\."):
        maker.page_of(FILE)
    with pytest.raises(DstackError, match=r"The page was cancelled\."):
        maker.page_of(FILE)
