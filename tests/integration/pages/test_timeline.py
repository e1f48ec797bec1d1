"""The timeline of a report page in a real browser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.browsers import errors, open_page, use_dark_theme
from tests.processes import wait_until

READY_S = 60.0
CHART = "const chart = charts['timeline-bars'], axes = charts['timeline-axes']; "
RUNNING_BAR = (
    CHART
    + """
const element = document.getElementById("timeline-bars");
element.scrollIntoView({block: "center", behavior: "instant"});
const rows = [...document.querySelectorAll(".gantt-row:not([hidden])")];
const row = rows.findIndex((one) => one.textContent.startsWith("actor Rollout c2f0c4ae"));
const box = element.getBoundingClientRect();
return [box.left + 0.9 * box.width, box.top + 18 * row + 9];
"""
)


def value(page: Any, script: str) -> Any:
    return page.execute_script(CHART + script)


def pointer(page: Any, place: Sequence[float], *, clicks: bool = False) -> None:
    from selenium.webdriver import ActionChains

    action: Any = ActionChains(page)
    action.w3c_actions.pointer_action.move_to_location(*map(int, place))
    if clicks:
        action.click()
    action.perform()


def press(page: Any, selector: str) -> None:
    page.execute_script("document.querySelector(arguments[0]).click()", f".gantt {selector}")


def tip(page: Any) -> list[str]:
    script = "const tip = document.querySelector('.gantt-tip'); return tip.hidden ? '' : tip.innerText"
    return str(page.execute_script(script)).splitlines()


def hovered(page: Any) -> list[str]:
    """The text at a bar: the pointer moves, as a page that still scrolls hides the text."""
    x, y = page.execute_script(RUNNING_BAR)
    pointer(page, (x + 2, y))
    pointer(page, (x, y))
    return tip(page)


def test_a_bar_has_a_text_and_leads_to_its_stack(page: Any) -> None:
    wait_until(lambda: bool(hovered(page)), deadline_s=READY_S, what=lambda: "a text at the pointer")

    name, state, when, worker, task, last = hovered(page)
    assert (name, state, last) == ("Rollout.pause", "can never proceed: 4.9 s", "Click: show its stack")
    assert worker == "actor Rollout c2f0c4ae, pid 15741, node 192.0.2.2 (980566a4)"
    assert when.startswith("8.9")
    assert len(task) == len("task ") + 48

    pointer(page, page.execute_script(RUNNING_BAR), clicks=True)
    wait_until(lambda: "#stack-" in page.current_url, deadline_s=READY_S, what=lambda: f"the stack: {page.current_url}")
    assert page.execute_script("return document.getElementById(location.hash.slice(1)) !== null")
    assert errors(page) == []


def test_a_filter_keeps_the_rows_that_match_and_dims_other_bars(page: Any) -> None:
    field = page.find_element("css selector", ".gantt input[type=search]")
    field.send_keys("no header")

    assert page.find_element("css selector", ".gantt [role=status]").text == "Rows: 1, tasks: 1"
    shown = page.execute_script(
        "return [...document.querySelectorAll('.gantt-row:not([hidden])')].map((one) => one.textContent)"
    )
    assert shown == ["Node 192.0.2.2 (96673b73)", "worker, pid 15752"]
    assert value(page, "return chart.height") == 2 * 18
    assert 1.0 in value(page, "return chart.renderers[0].data_source.data.alpha")

    field.clear()
    field.send_keys(" ")
    assert len(value(page, "return chart.renderers[0].data_source.data.left")) > 100
    assert errors(page) == []


def test_buttons_zoom_and_both_axes_follow(page: Any) -> None:
    whole = value(page, "return chart.x_range.end")
    press(page, ".zoom-in")
    start, end = value(page, "return [chart.x_range.start, chart.x_range.end]")

    assert (start, end) == (pytest.approx(whole / 2), pytest.approx(whole))
    assert value(page, "return [axes.x_range.start, axes.x_range.end]") == [start, end]
    clock = value(page, "const clock = axes.extra_x_ranges.clock; return clock.end - clock.start")
    assert clock == pytest.approx(1000 * (end - start), rel=1e-3)
    press(page, ".reset")
    assert value(page, "return [chart.x_range.start, chart.x_range.end]") == [0, whole]


def test_functions_have_colours_in_a_dark_page(browser: Any, path: Path) -> None:
    use_dark_theme(browser, is_dark=True)
    try:
        open_page(browser, path)
        press(browser, "[value=function]")
        colours = set(value(browser, "return chart.renderers[0].data_source.data.colour"))

        assert len(colours) > 8
        assert browser.find_element("css selector", ".by-function").is_displayed()
        assert value(browser, "return axes.above[0].major_label_text_color") == "#e6e6e6"
        assert errors(browser) == []
    finally:
        use_dark_theme(browser, is_dark=False)
