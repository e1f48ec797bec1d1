"""The timeline of a report page in a real browser."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.browsers import errors, open_page, use_dark_theme
from tests.processes import wait_until

READY_S = 60.0
ROLLOUT = "actor Rollout c2f0c4ae"
PLACE = """
const [title, part] = arguments, element = document.querySelector(".gantt-bars canvas");
element.scrollIntoView({block: "center", behavior: "instant"});
const rows = [...document.querySelectorAll(".gantt-row:not([hidden])")];
const row = rows.findIndex((one) => one.textContent.startsWith(title));
const box = element.getBoundingClientRect();
return [box.left + part * box.width, box.top + 18 * row + 9];
"""
"""Where a row has a part of the time."""
COLOUR = """
const [title, part] = arguments, element = document.querySelector(".gantt-bars canvas");
const rows = [...document.querySelectorAll(".gantt-row:not([hidden])")];
const row = rows.findIndex((one) => one.textContent.startsWith(title)), scale = element.width / element.clientWidth;
const at = [part * element.width, (18 * row + 4) * scale].map(Math.round);
return [...element.getContext("2d").getImageData(...at, 1, 1).data].slice(0, 3);
"""
"""The colour of what a row shows there."""
VIEW = "const {start, end} = document.querySelector('.gantt-bars canvas').dataset; return [Number(start), Number(end)]"
RED, LIGHT, DARK = [217, 54, 76], [255, 255, 255], [27, 29, 33]


def pointer(page: Any, *places: Sequence[float], clicks: bool = False) -> None:
    """Move to a place and perhaps click there; from it to the second with the button held."""
    from selenium.webdriver import ActionChains

    action: Any = ActionChains(page)
    action.w3c_actions.pointer_action.move_to_location(*map(int, places[0]))
    if clicks:
        action.click()
    if len(places) > 1:
        action.click_and_hold()
        action.w3c_actions.pointer_action.move_to_location(*map(int, places[1]))
        action.release()
    action.perform()


def press(page: Any, selector: str) -> None:
    page.execute_script("document.querySelector(arguments[0]).click()", f".gantt {selector}")


def text(page: Any, selector: str) -> list[str]:
    script = "const one = document.querySelector(arguments[0]); return one.hidden ? '' : one.innerText"
    return str(page.execute_script(script, selector)).splitlines()


def hovered(page: Any) -> list[str]:
    """The text at a bar: the pointer moves, as a page that still scrolls hides the text."""
    x, y = page.execute_script(PLACE, ROLLOUT, 0.9)
    pointer(page, (x + 2, y))
    pointer(page, (x, y))
    return text(page, ".gantt-tip")


def wait_for_view(page: Any, start: float, end: float, within: float = 1e-3) -> None:
    """Wait until this part of the time is drawn."""
    wanted = (pytest.approx(start, abs=within), pytest.approx(end, abs=within))
    wait_until(
        lambda: tuple(page.execute_script(VIEW)) == wanted,
        deadline_s=READY_S,
        what=lambda: f"{wanted}: {page.execute_script(VIEW)}",
    )


def test_a_stuck_bar_is_red_has_a_text_and_leads_to_its_stack(page: Any) -> None:
    wait_until(lambda: bool(hovered(page)), deadline_s=READY_S, what=lambda: "a text at the pointer")

    name, state, when, worker, task, caller, last = hovered(page)
    assert (name, state, last) == ("Rollout.pause", "can never proceed: 4.9 s", "Click: show its stack")
    assert worker == "actor Rollout c2f0c4ae, pid 15741, node 192.0.2.2 (980566a4)"
    assert when.startswith("8.9")
    assert len(task) == len("task ") + 48
    assert caller == "called by Trainer.sync"
    assert page.execute_script(COLOUR, ROLLOUT, 0.8) == RED

    pointer(page, page.execute_script(PLACE, ROLLOUT, 0.9), clicks=True)
    wait_until(lambda: "#stack-" in page.current_url, deadline_s=READY_S, what=lambda: f"the stack: {page.current_url}")
    assert page.execute_script("return document.getElementById(location.hash.slice(1)) !== null")
    assert errors(page) == []


def test_a_filter_keeps_the_rows_that_match(page: Any) -> None:
    field = page.find_element("css selector", ".gantt input[type=search]")
    field.send_keys("no header")

    assert text(page, ".gantt [role=status]") == ["Rows: 1, tasks: 1"]
    shown = page.execute_script(
        "return [...document.querySelectorAll('.gantt-row:not([hidden])')].map((one) => one.textContent)"
    )
    assert shown == ["Node 192.0.2.2 (96673b73)", "worker, pid 15752"]
    height = "return document.querySelector('.gantt-bars canvas').clientHeight"
    wait_until(lambda: page.execute_script(height) == 2 * 18, deadline_s=READY_S, what=lambda: "two rows")
    assert errors(page) == []


def test_buttons_and_keys_zoom_and_move(page: Any) -> None:
    start, whole = page.execute_script(VIEW)
    press(page, ".zoom-in")
    wait_for_view(page, whole / 2, whole)
    canvas = page.find_element("css selector", ".gantt-bars canvas")
    for keys, view in (
        ("\ue012", (0.4 * whole, 0.9 * whole)),
        ("+", (0.525 * whole, 0.775 * whole)),
        ("-", (0.4 * whole, 0.9 * whole)),
        ("0", (start, whole)),
    ):
        canvas.send_keys(keys)
        wait_for_view(page, *view)


def test_a_dragged_range_is_summed_and_can_be_shown(page: Any) -> None:
    places = [page.execute_script(PLACE, "worker, pid 15752", part) for part in (0.1, 0.5)]
    pointer(page, *places)

    lines = text(page, ".gantt-sum")
    assert lines[0].endswith("1 lane with tasks")
    assert [line.split("\t")[:3] for line in lines if "\t1\t1\t" in line] == [["all", "1", "1"], ["prepare", "1", "1"]]
    _, whole = page.execute_script(VIEW)
    press(page, ".to-range")
    wait_for_view(page, 0.1 * whole, 0.5 * whole, within=0.01 * whole)
    press(page, ".clear")
    assert text(page, ".gantt-sum") == []
    assert errors(page) == []


def test_colours_follow_the_theme_and_the_choice(browser: Any, path: Path) -> None:
    open_page(browser, path)
    assert browser.execute_script(COLOUR, ROLLOUT, 0.3) == LIGHT
    use_dark_theme(browser, is_dark=True)
    try:
        wait_until(
            lambda: browser.execute_script(COLOUR, ROLLOUT, 0.3) == DARK, deadline_s=READY_S, what=lambda: "dark"
        )
        before = browser.execute_script(COLOUR, "worker, pid 15809", 0.45)
        press(browser, "[value=function]")
        wait_until(
            lambda: browser.execute_script(COLOUR, "worker, pid 15809", 0.45) != before,
            deadline_s=READY_S,
            what=lambda: "the colour of the function",
        )
        assert browser.find_element("css selector", ".by-function").is_displayed()
        assert errors(browser) == []
    finally:
        use_dark_theme(browser, is_dark=False)
