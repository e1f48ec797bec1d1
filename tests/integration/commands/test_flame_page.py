"""The flame graph page in a real browser, without a network."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dstack.analysis.stacks.app_threads import PathStep
from dstack.analysis.stacks.weighted_stacks import WeightedStack, WeightedStacks
from dstack.report.exporters.flame_page import flame_page
from tests.processes import wait_until

pytestmark = pytest.mark.skipif(
    not shutil.which("chromium") or not shutil.which("chromedriver"), reason="there is no Chromium with chromedriver"
)

READY_S = 60.0
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1200,700",
)
HOSTILE = "<img src=x onerror='window.hacked = 1'></script><script>window.hacked = 1</script>"
STEP, LOAD = PathStep("step", "train.py", 7, "step"), PathStep("load", "data.py", 3, "load")
MAIN = PathStep("main", "train.py", 20, "main")
STACKS = WeightedStacks(
    "recording",
    "samples",
    (
        WeightedStack(("node 10.0.0.1", "actor Trainer"), (MAIN, STEP), 60),
        WeightedStack(("node 10.0.0.1", "actor Trainer"), (MAIN, LOAD), 20),
        WeightedStack(("node 10.0.0.2", HOSTILE), (MAIN, LOAD), 20),
    ),
)
PLOT = "const plot = Bokeh.documents[0].get_model_by_name('flame'); const d = plot.renderers[0].data_source.data; "


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Any:
    """The page, once it is drawn."""
    path = tmp_path / "flame.html"
    path.write_bytes(flame_page(STACKS, f"Recording {HOSTILE}", "100 samples"))
    browser.get(path.as_uri())
    wait_until(
        lambda: browser.execute_script(
            "return !!window.Bokeh && Bokeh.documents.length > 0 && "
            f"(() => {{ {PLOT} return d.label.includes('node 10.0.0.1'); }})()"
        ),
        deadline_s=READY_S,
        what=lambda: f"labels: {browser.get_log('browser')}",
    )
    return browser


def values(page: Any, script: str) -> Any:
    return page.execute_script(PLOT + script)


def test_the_page_is_drawn_without_requests_errors_or_foreign_scripts(page: Any) -> None:
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    requests = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]

    assert [url for url in requests if url.startswith(("http", "ws"))] == []
    assert [one for one in page.get_log("browser") if one["level"] == "SEVERE"] == []
    assert page.execute_script("return window.hacked === undefined")
    assert page.execute_script("return document.querySelector('h1').innerText") == f"Recording {HOSTILE}"
    assert values(page, "return plot.inner_width") > 500


def test_a_click_zooms_and_the_button_resets(page: Any) -> None:
    assert shown_range(page) == [0, 100]
    click(page, STEP_AT)
    wait_until(lambda: shown_range(page) == [20, 80], deadline_s=READY_S, what=lambda: f"zoom: {shown_range(page)}")
    assert values(page, "return d.label[d.name.indexOf('step')]") == "step"

    click(page, RESET_AT)
    wait_until(lambda: shown_range(page) == [0, 100], deadline_s=READY_S, what=lambda: f"reset: {shown_range(page)}")


STEP_AT = """
const i = d.name.indexOf("step"), view = Bokeh.index.find_one(plot), box = view.el.getBoundingClientRect();
const x = view.frame.x_scale.compute((d.left[i] + d.right[i]) / 2), y = view.frame.y_scale.compute(d.middle[i]);
return [box.left + x, box.top + y];
"""
RESET_AT = """
const box = Bokeh.index.find_one(Bokeh.documents[0].get_model_by_name("reset")).el.getBoundingClientRect();
return [box.left + box.width / 2, box.top + box.height / 2];
"""


def shown_range(page: Any) -> Any:
    return values(page, "return [plot.x_range.start, plot.x_range.end]")


def click(page: Any, place: str) -> None:
    from selenium.webdriver import ActionChains

    x, y = values(page, place)
    action: Any = ActionChains(page)
    action.w3c_actions.pointer_action.move_to_location(int(x), int(y))
    action.click().perform()


def test_a_search_marks_matches_and_sums_them_once(page: Any) -> None:
    values(page, "Bokeh.documents[0].get_model_by_name('search').value_input = 'TRAIN'")

    text = wait_until(
        lambda: values(page, "return Bokeh.documents[0].get_model_by_name('matches').text"),
        deadline_s=READY_S,
        what=lambda: "matches",
    )
    assert text == "4 boxes match, 100.0 % of all"
    names, alphas = values(page, "return [d.name, d.alpha]")
    assert {name for name, alpha in zip(names, alphas, strict=True) if alpha == 1} == {"actor Trainer", "main", "step"}
