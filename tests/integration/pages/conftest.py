from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import load
from dstack.report.page.pages import report_page
from tests.browsers import HAS_CHROMIUM, chromium, open_page
from tests.paths import RECORDED_CALLS


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One browser for these tests of this process; it ends before others that need the CPU."""
    if not HAS_CHROMIUM:
        pytest.skip("there is no Chromium with chromedriver")
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="package")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with graphs and a timeline."""
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_bytes(report_page(AnalysedSnapshot.of(load(RECORDED_CALLS))))
    return file


@pytest.fixture
def page(browser: Any, path: Path) -> Any:
    """The page, once it is drawn."""
    open_page(browser, path)
    return browser
