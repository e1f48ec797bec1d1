from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browsers import HAS_CHROMIUM, chromium


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One browser for these tests of this process; it ends before others that need the CPU."""
    if not HAS_CHROMIUM:
        pytest.skip("there is no Chromium with chromedriver")
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver
