"""A page of a thousand workers in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.made_up_snapshots import with_many_stacks
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.report.page.pages import report_page
from tests.browsers import errors, open_page
from tests.unit.support.large_histories import with_history

ATTEMPTS = 2_000


@pytest.mark.exhaustive
def test_the_page_of_a_thousand_workers_is_drawn(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "large.html"
    path.write_bytes(report_page(AnalysedSnapshot.of(with_history(with_many_stacks(1_000), ATTEMPTS))))

    open_page(browser, path)

    assert errors(browser) == []
    assert browser.execute_script("return Number(document.querySelector('.gantt-bars canvas').dataset.end)") > 0
