"""``dstack report`` of a running cluster, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browsers import errors, open_page, requests
from tests.clusters.dstack_command import dstack
from tests.clusters.shared_cluster import SharedCluster
from tests.examples.expected import expected_of
from tests.paths import EXAMPLES


@pytest.mark.ray
def test_the_page_of_a_running_cluster_opens_in_a_browser(shared: SharedCluster, browser: Any, tmp_path: Path) -> None:
    page = tmp_path / "hang.html"
    with shared.running("two_actors"):
        shared.settled(expected_of(EXAMPLES / "two_actors.py"))
        cluster = shared.cluster
        done = dstack("report", "--address", cluster.address, "-o", str(page), environment=cluster.environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"Saved {page} ({page.stat().st_size / 1e6:.1f} MB). Open it in a browser.\n"

    open_page(browser, page)

    heading = browser.find_element("css selector", "h1").text
    assert heading.startswith("DEADLOCK Cashier.order and Kitchen.cook wait for each other")
    links = [link.get_attribute("href") for link in browser.find_elements("css selector", "nav a")]
    keys = [link.rpartition("#")[2] for link in links]
    assert all(browser.find_elements("id", key) for key in keys)
    assert errors(browser) == []
    assert requests(browser) == []
