"""The flame graph page in a real browser, without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dstack.analysis.stacks.weighted_stacks import WeightedStack, WeightedStacks
from dstack.model.profile import PathStep
from dstack.report.page.flame_section import Flame, section_of
from dstack.report.page.pages import document, flame_page, sampled_page
from dstack.report.page.section import render
from tests.browsers import errors, open_page, requests
from tests.processes import wait_until
from tests.unit.analysis.stacks.made_profiles import GET, ON_CPU, QUEUE, SCORE, SLEEP, in_turn, line, profile_of

READY_S = 60.0
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
PLOT = (
    "const plot = Bokeh.documents[0].get_model_by_name('flame-chart-0'); const d = plot.renderers[0].data_source.data; "
)


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Any:
    """The page, once it is drawn."""
    path = tmp_path / "flame.html"
    path.write_bytes(flame_page([Flame(HOSTILE, STACKS)], f"Recording {HOSTILE}", "100 samples"))
    open_page(browser, path)
    return browser


def values(page: Any, script: str) -> Any:
    return page.execute_script(PLOT + script)


def test_the_page_is_drawn_without_requests_errors_or_foreign_scripts(page: Any) -> None:
    assert requests(page) == []
    assert errors(page) == []
    assert page.execute_script("return window.hacked === undefined")
    assert page.execute_script("return document.querySelector('h1').innerText") == f"Recording {HOSTILE}"
    assert values(page, "return plot.inner_width") > 500


def test_a_click_zooms_and_the_button_resets(page: Any) -> None:
    assert shown_range(page) == [0, 100]
    click(page, STEP_AT)
    wait_until(lambda: shown_range(page) == [0, 60], deadline_s=READY_S, what=lambda: f"zoom: {shown_range(page)}")
    assert values(page, "return d.label[d.name.indexOf('step')]") == "step  60 %"

    click(page, RESET_AT)
    wait_until(lambda: shown_range(page) == [0, 100], deadline_s=READY_S, what=lambda: f"reset: {shown_range(page)}")


STEP_AT = """
const i = d.name.indexOf("step"), view = Bokeh.index.find_one(plot), box = view.el.getBoundingClientRect();
const x = view.frame.x_scale.compute((d.left[i] + d.right[i]) / 2), y = view.frame.y_scale.compute(d.middle[i]);
return [box.left + x, box.top + y];
"""
RESET_AT = """
const box = document.querySelector(".flame .reset").getBoundingClientRect();
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
    page.find_element("css selector", ".flame input").send_keys("TRAIN")

    text = page.find_element("css selector", ".flame [role=status]").text
    assert text == "4 boxes match, 100.0 % of all"
    names, alphas = values(page, "return [d.name, d.alpha]")
    assert {name for name, alpha in zip(names, alphas, strict=True) if alpha == 1} == {"actor Trainer", "main", "step"}


def test_a_level_up_is_the_next_wider_box(page: Any) -> None:
    click(page, STEP_AT)
    wait_until(lambda: shown_range(page) == [0, 60], deadline_s=READY_S, what=lambda: f"zoom: {shown_range(page)}")
    assert (
        page.find_element("css selector", ".flame .zoomed").text == "step, train.py:7 (application), 60 samples, 60.0 %"
    )

    up = page.find_element("css selector", ".flame .up")
    up.click()
    assert shown_range(page) == [0, 80]
    up.click()
    assert (shown_range(page), up.is_enabled()) == ([0, 100], False)


def test_another_flame_graph_is_drawn_when_it_is_chosen(browser: Any, tmp_path: Path) -> None:
    section = section_of("flames", "Two", [Flame("first", STACKS), Flame("second", STACKS)])
    path = tmp_path / "flames.html"
    path.write_bytes(document("Two", render("flame_heading.html", title="Two", subtitle=""), [section]))
    open_page(browser, path)

    browser.find_element("css selector", ".flames [type=radio][value='1']").click()

    assert [one.is_displayed() for one in browser.find_elements("css selector", ".flame")] == [False, True]
    script = (
        "const one = charts['flames-chart-1']; return one.inner_width > 500 && one.renderers[0].data_source.data.label"
    )
    wait_until(lambda: bool(browser.execute_script(script)), deadline_s=READY_S, what=lambda: "the width of the second")
    assert {"main  80 %", "step  60 %", "load  20 %"} <= set(browser.execute_script(script))
    assert errors(browser) == []


SCORING, QUEUED = (line(5), GET, SCORE, line(9, "score"), SLEEP), (line(5), GET, QUEUE, SCORE, line(9, "score"), SLEEP)
PROFILE = profile_of(in_turn((3, SCORING), (2, (line(6), ON_CPU)), (4, QUEUED), (1, SCORING)))


def profile_in(browser: Any, tmp_path: Path) -> Any:
    path = tmp_path / "profile.html"
    path.write_bytes(sampled_page(PROFILE))
    open_page(browser, path)
    return browser


def rows(page: Any) -> list[list[str]]:
    """The labels from above, each row from left to right."""
    names, tops, lefts = values(page, "return [d.label, d.top, d.left]")
    boxes = sorted(zip(tops, lefts, names, strict=True))
    return [[name for top, _, name in boxes if top == row] for row in sorted(set(tops))]


def test_a_profile_has_percentages_states_and_the_order_of_time(browser: Any, tmp_path: Path) -> None:
    page = profile_in(browser, tmp_path)

    assert rows(page)[:3] == [
        ["driver train.py  100 %"],
        ["main:5  80 %", "main:6  20 %"],
        ["ray.get  80 %", "on CPU  20 %"],
    ]
    places = values(page, "return Object.fromEntries(d.name.map((name, i) => [name, d.place[i]]))")
    assert places["Reward.score: queued behind"] == "waits in a queue"
    assert places["on CPU"] == "runs"
    legend = [one.text for one in page.find_elements("css selector", ".flame .key")]
    assert legend == ["runs", "sleeps", "waits", "waits in a queue", "application", "driver, task or actor"]

    page.find_element("css selector", ".flame .order").click()

    assert rows(page)[1] == ["main:5  30 %", "main:6  20 %", "main:5  50 %"]
    assert errors(page) == []


def test_callers_and_callees_of_a_function_are_merged(browser: Any, tmp_path: Path) -> None:
    page = profile_in(browser, tmp_path)
    values(page, "plot.renderers[0].data_source.selected.indices = [d.name.indexOf('score')];")

    page.find_element("css selector", ".flame .sandwich").click()

    assert [row for row in rows(page) if "score  80 %" in row] == [["score  80 %"]]
    assert rows(page)[-3:] == [["Reward.score  80 %"], ["score  80 %"], ["time.sleep  80 %"]]
    assert rows(page)[-4] == ["ray.get  40 %", "Reward.score: queued behind  40 %"]
    page.find_element("css selector", ".flame .reset").click()
    assert rows(page)[0] == ["driver train.py  100 %"]
    assert errors(page) == []
