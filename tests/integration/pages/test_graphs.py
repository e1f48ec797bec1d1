"""The drawn graphs of a report in a real browser: texts, search, zoom, and clicks that lead to stacks and rows."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browsers import errors
from tests.processes import wait_until

READY_S = 60.0
GRAPH = """
const chart = charts[arguments[0]], find = (name) => chart.renderers.find((one) => one.name === name);
const boxes = find("boxes").data_source, d = boxes.data;
"""
PLACE = """
const view = Bokeh.index.find_one(chart), box = view.el.getBoundingClientRect(), i = d.title.indexOf(arguments[1]);
return [box.left + view.frame.x_scale.compute(d.x[i]), box.top + view.frame.y_scale.compute(d.y[i])];
"""


def run(page: Any, graph: str, script: str, *values: str) -> Any:
    return page.execute_script(GRAPH + script, f"{graph}-chart", *values)


def point(page: Any, graph: str, title: str) -> Any:
    """An action that moves the pointer to the middle of a box."""
    from selenium.webdriver import ActionChains

    run(page, graph, "document.getElementById(arguments[0]).scrollIntoView({behavior: 'instant', block: 'center'});")
    x, y = run(page, graph, PLACE, title)
    action: Any = ActionChains(page, duration=10)
    action.w3c_actions.pointer_action.move_to_location(int(x), int(y))
    return action


def tooltips(page: Any) -> str:
    script = """
    const texts = [], visit = (root) => root.querySelectorAll("*").forEach((one) => {
      if (one.classList.contains("bk-Tooltip")) texts.push(one.shadowRoot ? one.shadowRoot.textContent : one.innerText);
      if (one.shadowRoot) visit(one.shadowRoot);
    });
    visit(document);
    return texts.join("\\n");
    """
    return str(page.execute_script(script))


def click(page: Any, button: str) -> None:
    """Click it wherever it is; pages scroll smoothly, which takes its time."""
    page.execute_script("document.querySelector(arguments[0]).click()", button)


def test_the_pointer_shows_details_and_a_click_goes_to_the_stack(page: Any) -> None:
    title = next(one for one in run(page, "waits", "return d.title") if one.startswith("✖ Trainer"))
    (stack,) = run(page, "waits", "return [d.goes_to[d.title.indexOf(arguments[1])]]", title)

    point(page, "waits", title).perform()
    wait_until(lambda: "Wait: ray.get" in tooltips(page), deadline_s=READY_S, what=lambda: tooltips(page))
    assert min(run(page, "waits", "return find('links').data_source.data.alpha")) < 0.5

    point(page, "waits", title).click().perform()
    wait_until(
        lambda: page.execute_script("return location.hash") == f"#{stack}",
        deadline_s=READY_S,
        what=lambda: page.current_url,
    )
    assert page.execute_script("return document.getElementById(arguments[0]).offsetHeight > 0", stack)
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
    matches = run(page, "calls", "return d.alpha.filter((one) => one === 1).length")
    assert status.text == f"{matches} of {len(run(page, 'calls', 'return d.title'))} boxes match"
    assert 0 < matches < 5
    search.send_keys(Keys.ENTER)
    assert status.text == f"1 of {matches} boxes that match"

    width = "return chart.x_range.end - chart.x_range.start"
    before = run(page, "calls", width)
    click(page, "#calls [data-zoom=in]")
    assert run(page, "calls", width) == pytest.approx(before / 1.4)
    assert run(page, "calls", "return find('texts').glyph.text_font_size.value").endswith("px")
    click(page, "#calls [data-zoom=all]")
    assert run(page, "calls", width) >= run(page, "calls", "return chart.tags[0]")
    assert errors(page) == []
