"""The drawn graphs of a report in a real browser: texts, search, zoom, and clicks that lead to stacks and rows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browsers import errors
from tests.processes import wait_until

READY_S = 60.0
BOX = """
const graph = document.querySelector(`#${arguments[0]} .graph`), svg = graph.querySelector(".drawing svg");
const boxes = [...svg.querySelectorAll("[data-box]")], title = (one) => one.querySelector("text").textContent;
const box = boxes.find((one) => title(one).startsWith(arguments[1]));
"""


def run(page: Any, graph: str, script: str, title: str = "") -> Any:
    return page.execute_script(BOX + script, graph, title)


def point(page: Any, graph: str, title: str) -> Any:
    """An action that moves the pointer to the middle of a box."""
    from selenium.webdriver import ActionChains

    run(page, graph, "graph.querySelector('.drawing').scrollIntoView({behavior: 'instant', block: 'center'});")
    script = "const r = box.getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2];"
    x, y = run(page, graph, script, title)
    action: Any = ActionChains(page, duration=10)
    action.w3c_actions.pointer_action.move_to_location(int(x), int(y))
    return action


def click(page: Any, button: str) -> None:
    """Click it wherever it is; pages scroll smoothly, which takes its time."""
    page.execute_script("document.querySelector(arguments[0]).click()", button)


def test_a_graph_opens_with_readable_text(page: Any) -> None:
    for graph in ("waits", "calls"):
        scale = run(page, graph, "return svg.getScreenCTM().a")
        assert 12 * scale >= 9
        first = run(page, graph, "const r = boxes[0].getBoundingClientRect(); return [r.left, r.width]")
        assert first[0] >= 0
        assert first[1] > 50


def test_the_pointer_emphasises_links_and_a_click_goes_to_the_stack(page: Any) -> None:
    stack = run(page, "waits", "return box.closest('a').getAttribute('href')", "✖ Trainer")
    assert "Wait: ray.get" in run(page, "waits", "return box.querySelector('title').textContent", "✖ Trainer")

    point(page, "waits", "✖ Trainer").perform()
    faded = run(page, "waits", "return svg.querySelectorAll('.link.faded').length")
    assert 0 < faded < run(page, "waits", "return svg.querySelectorAll('.link').length")

    point(page, "waits", "✖ Trainer").click().perform()
    wait_until(
        lambda: page.execute_script("return location.hash") == stack,
        deadline_s=READY_S,
        what=lambda: page.current_url,
    )
    wait_until(
        lambda: page.execute_script("return document.getElementById(arguments[0]).offsetHeight > 0", stack[1:]),
        deadline_s=READY_S,
        what=lambda: "the stack is folded",
    )
    assert errors(page) == []


def test_a_drag_moves_the_graph_and_follows_no_link(page: Any) -> None:
    before = page.execute_script("return location.hash")
    click(page, "#calls [data-zoom=in]")
    view = "return svg.viewBox.baseVal.x"
    left = run(page, "calls", view)
    point(page, "calls", "✖ Trainer").click_and_hold().move_by_offset(-60, 0).release().perform()

    assert run(page, "calls", view) > left
    assert page.execute_script("return location.hash") == before
    assert errors(page) == []


def test_a_click_on_a_caller_goes_to_its_calls(page: Any) -> None:
    point(page, "calls", "driver pipeline.py").click().perform()

    wait_until(
        lambda: page.execute_script("return location.hash") == "#calls-0",
        deadline_s=READY_S,
        what=lambda: page.current_url,
    )
    assert errors(page) == []


def test_the_search_marks_boxes_and_goes_to_them_and_the_buttons_zoom(page: Any) -> None:
    from selenium.webdriver import Keys

    search = page.find_element("css selector", "#calls .graph input")
    search.send_keys("TOKENIZE")
    status = page.find_element("css selector", "#calls .graph [role=status]")
    matches = run(page, "calls", "return boxes.filter((one) => !one.classList.contains('faded')).length")
    assert status.text == f"{matches} of {run(page, 'calls', 'return boxes.length')} boxes match"
    assert 0 < matches < 5
    search.send_keys(Keys.ENTER)
    assert status.text == f"1 of {matches} boxes that match"

    width = "return svg.viewBox.baseVal.width"
    before = run(page, "calls", width)
    click(page, "#calls [data-zoom=in]")
    assert run(page, "calls", width) == pytest.approx(before / 1.4, rel=1e-3)
    click(page, "#calls [data-zoom=all]")
    assert run(
        page,
        "calls",
        "return boxes.every((one) => {"
        " const r = one.getBoundingClientRect(), all = graph.querySelector('.drawing').getBoundingClientRect();"
        " return r.left >= all.left && r.right <= all.right && r.top >= all.top && r.bottom <= all.bottom; })",
    )
    assert errors(page) == []
