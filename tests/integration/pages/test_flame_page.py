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
BOXES = """
document.querySelector(".flames").scrollIntoView();
return [...document.querySelectorAll(".flame:not([hidden]) g.frame")].map((one) => {
  const {x, y, width} = one.getBoundingClientRect();
  return [y, x, width, one.querySelector("div").textContent];
});
"""
ACT = """
const box = [...document.querySelectorAll(".flame:not([hidden]) g.frame")].find((one) =>
  one.getAttribute("name").startsWith(arguments[1]));
box.dispatchEvent(new MouseEvent(arguments[0], {bubbles: true}));
"""


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Any:
    """The page, once it is drawn."""
    path = tmp_path / "flame.html"
    path.write_bytes(flame_page([Flame(HOSTILE, STACKS)], f"Recording {HOSTILE}", "100 samples"))
    open_page(browser, path)
    return browser


def boxes(page: Any) -> list[list[str]]:
    """The labels from above, each row from left to right."""
    found = sorted(page.execute_script(BOXES))
    return [[label for y, *_, label in found if y == row] for row in sorted({y for y, *_ in found})]


def wait_for(page: Any, expected: list[list[str]]) -> None:
    """Wait for the rows from the first of these on; labels are drawn after the boxes."""
    wait_until(
        lambda: boxes(page)[: len(expected)] == expected,
        deadline_s=READY_S,
        what=lambda: f"boxes: {boxes(page)}, {errors(page)}",
    )


def press(page: Any, button: str) -> None:
    page.find_element("css selector", f".flame:not([hidden]) {button}").click()


def test_the_page_is_drawn_without_requests_errors_or_foreign_scripts(page: Any) -> None:
    assert requests(page) == []
    assert errors(page) == []
    assert page.execute_script("return window.hacked === undefined")
    assert page.execute_script("return document.querySelector('h1').innerText") == f"Recording {HOSTILE}"
    wait_for(page, WHOLE)


ALL, NODES = ["all  100 %"], ["node 10.0.0.1  80 %", "node 10.0.0.2  20 %"]
WHOLE = [ALL, NODES, ["actor Trainer  80 %", f"{HOSTILE}  20 %"], ["main  80 %", "main  20 %"]]


def test_a_click_zooms_and_the_buttons_lead_back(page: Any) -> None:
    wait_for(page, WHOLE)
    page.execute_script(ACT, "click", "step")
    wait_for(page, [ALL, ["node 10.0.0.1  80 %"], ["actor Trainer  80 %"], ["main  80 %"], ["step  60 %"]])
    width = {label: width for _, _, width, label in page.execute_script(BOXES)}
    assert width["step  60 %"] == width["all  100 %"] > 500
    text = page.find_element("css selector", ".flame .zoomed").text
    assert text == "step, train.py:7 (application), 60 samples, 60.0 %"

    press(page, ".up")
    outer = [["node 10.0.0.1  80 %"], ["actor Trainer  80 %"], ["main  80 %"]]
    wait_for(page, [ALL, *outer, ["step  60 %", "load  20 %"]])
    press(page, ".reset")
    wait_for(page, WHOLE)
    assert not page.find_element("css selector", ".flame .up").is_enabled()


def test_a_search_marks_matches_and_sums_them_once(page: Any) -> None:
    wait_for(page, WHOLE)
    page.find_element("css selector", ".flame input").send_keys("TRAIN")

    text = page.find_element("css selector", ".flame [role=status]").text
    assert text == "4 boxes match, 100.0 % of all"
    script = (
        "return [...document.querySelectorAll(\".flame g:has(rect[fill='#ff8cc6'])\")].map((one) => one.textContent)"
    )
    assert {text.split("  ")[0] for text in page.execute_script(script)} == {"actor Trainer", "main", "step"}


def test_another_flame_graph_is_drawn_when_it_is_chosen(browser: Any, tmp_path: Path) -> None:
    section = section_of("flames", "Two", [Flame("first", STACKS), Flame("second", STACKS)])
    path = tmp_path / "flames.html"
    path.write_bytes(document("Two", render("flame_heading.html", title="Two", subtitle=""), [section]))
    open_page(browser, path)

    browser.find_element("css selector", ".flames [type=radio][value='1']").click()

    assert [one.is_displayed() for one in browser.find_elements("css selector", ".flame")] == [False, True]
    wait_for(browser, WHOLE)
    assert errors(browser) == []


SCORING, QUEUED = (line(5), GET, SCORE, line(9, "score"), SLEEP), (line(5), GET, QUEUE, SCORE, line(9, "score"), SLEEP)
PROFILE = profile_of(in_turn((3, SCORING), (2, (line(6), ON_CPU)), (4, QUEUED), (1, SCORING)))


def profile_in(browser: Any, tmp_path: Path) -> Any:
    path = tmp_path / "profile.html"
    path.write_bytes(sampled_page(PROFILE))
    open_page(browser, path)
    return browser


def test_a_profile_has_percentages_states_and_the_order_of_time(browser: Any, tmp_path: Path) -> None:
    page = profile_in(browser, tmp_path)
    wait_for(
        page, [ALL, ["driver train.py  100 %"], ["main:5  80 %", "main:6  20 %"], ["ray.get  80 %", "on CPU  20 %"]]
    )
    for name, text in (
        ("Reward.score: queued", "Reward.score: queued behind, waits in a queue, 4.0 s, 40.0 %"),
        ("on CPU", "on CPU, runs, 2.0 s, 20.0 %"),
    ):
        page.execute_script(ACT, "mouseover", name)
        assert [page.find_element("css selector", one).text for one in (".zoomed", ".flame-tip")] == [text, text]
    legend = [one.text for one in page.find_elements("css selector", ".flame .key")]
    assert legend == ["runs", "sleeps", "waits", "waits in a queue", "application", "driver, task or actor"]

    press(page, ".order")

    wait_for(page, [ALL, ["driver train.py  100 %"], ["main:5  30 %", "main:6  20 %", "main:5  50 %"]])
    assert errors(page) == []


def test_callers_and_callees_of_a_function_are_merged(browser: Any, tmp_path: Path) -> None:
    page = profile_in(browser, tmp_path)
    wait_for(page, [ALL])
    page.execute_script(ACT, "click", "score ")

    press(page, ".sandwich")

    callers = [["ray.get  40 %", "Reward.score: queued behind  40 %"], ["Reward.score  80 %"]]
    callees = [["score  80 %", "score  80 %"], ["time.sleep  80 %"]]  # the function itself is drawn twice, in one place
    wait_until(lambda: boxes(page)[-4:] == [*callers, *callees], deadline_s=READY_S, what=lambda: str(boxes(page)))
    press(page, ".reset")
    wait_for(page, [ALL, ["driver train.py  100 %"]])
    assert errors(page) == []
