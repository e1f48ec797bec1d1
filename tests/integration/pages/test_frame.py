"""What is around the sections of a report, in a real browser: its bar, its search, findings to copy, and contrast."""

from __future__ import annotations

from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from tests.browsers import errors, use_dark_theme
from tests.processes import wait_until

READY_S = 60.0
LOWEST_CONTRAST = 4.5
TOP = "return document.querySelector(arguments[0]).getBoundingClientRect().top"
OPEN = """
for (const one of document.querySelectorAll("details")) one.open = true;
document.querySelector(".flame").scrollIntoView();
"""
CONTRASTS = """
const context = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
const known = new Map();
function colour(text) { // red, green, blue from 0 to 255, and alpha
  if (!known.has(text)) {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = text;
    context.fillRect(0, 0, 1, 1);
    const [...rgba] = context.getImageData(0, 0, 1, 1).data;
    known.set(text, [...rgba.slice(0, 3), rgba[3] / 255]);
  }
  return known.get(text);
}
const over = (above, below) => [0, 1, 2].map((at) => above[at] * above[3] + below[at] * (1 - above[3]));
function backgroundOf(element) {
  const box = element.closest("g.frame")?.querySelector("rect");
  if (box) return colour(box.getAttribute("fill")).slice(0, 3);
  const outer = element.parentElement ? backgroundOf(element.parentElement) : [255, 255, 255];
  return over(colour(getComputedStyle(element).backgroundColor), outer);
}
function luminance(rgb) {
  const [red, green, blue] = rgb.map((one) => one / 255).map((one) =>
    one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}
const found = {}, walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
  if (!text || element.closest("script, svg text, :disabled") || !element.checkVisibility()) continue;
  const below = backgroundOf(element);
  const [darker, lighter] = [luminance(over(colour(getComputedStyle(element).color), below)), luminance(below)].sort();
  const contrast = (lighter + 0.05) / (darker + 0.05);
  const kind = `${element.localName}.${element.className}`;
  if (!(contrast >= found[kind]?.[0])) found[kind] = [contrast, text.slice(0, 40)];
}
return found;
"""


def search(page: Any, text: str) -> Any:
    field = page.find_element("css selector", ".search input")
    field.clear()
    field.send_keys(text)
    return field


def status(page: Any) -> str:
    return str(page.find_element("css selector", ".search [role=status]").text)


def wait_for_status(page: Any, text: str) -> None:
    wait_until(lambda: status(page) == text, deadline_s=READY_S, what=lambda: f"{status(page)}: {errors(page)}")


def test_the_bar_stays_and_a_finding_is_linked_below_it(page: Any) -> None:
    page.execute_script("location.hash = 'cluster'")
    wait_until(lambda: page.execute_script(TOP, "#top") < -100, deadline_s=READY_S, what=lambda: "not scrolled")
    bar = page.find_element("css selector", ".bar")
    assert page.execute_script(TOP, ".bar") == 0
    wait_until(
        lambda: bar.text.startswith("DEADLOCK\nsince 08:04:57 (5.4 s)\njob pipeline.py (01000000)\n2 nodes\n"),
        deadline_s=READY_S,
        what=lambda: bar.text,
    )

    page.execute_script("location.hash = 'finding-2'")

    height = bar.size["height"]
    wait_until(
        lambda: height <= page.execute_script(TOP, "#finding-2") < height + 600, deadline_s=READY_S, what=lambda: "hash"
    )


def test_the_search_counts_matches_in_folded_parts_and_goes_to_them(page: Any) -> None:
    page.execute_script("for (const one of document.querySelectorAll('details')) one.open = false")
    field = search(page, "Rollout.PAUSE")
    wait_until(lambda: status(page).endswith(" matches"), deadline_s=READY_S, what=lambda: status(page))
    number = int(status(page).split()[0])
    without = [one.text for one in page.find_elements("css selector", "nav a.without")]
    assert "What was not observed" in without
    assert not any(text.startswith(("Findings", "Stacks")) for text in without)
    assert page.execute_script("return CSS.highlights.get('found').size") == number

    current = (
        "const range = [...CSS.highlights.get('current')][0], box = range.getBoundingClientRect();"
        "return range.startContainer.parentElement.checkVisibility() && box.top >= 0 && box.bottom <= innerHeight"
    )
    for at in range(1, number + 1):
        field.send_keys(Keys.ENTER)
        assert status(page) == f"{at} of {number}"
        assert page.execute_script(current), at
    field.send_keys(Keys.ENTER)
    wait_for_status(page, f"1 of {number}")

    search(page, "no such text")
    wait_for_status(page, "0 matches")
    assert errors(page) == []


@pytest.mark.parametrize("clipboard", ["", "Object.defineProperty(navigator, 'clipboard', {value: undefined})"])
def test_a_finding_is_copied_as_markdown(page: Any, clipboard: str) -> None:
    page.execute_script(f"window.scrollTo(0, 0); {clipboard}")
    button = page.find_element("css selector", "#finding-1 .copy")
    button.click()
    wait_until(lambda: button.text == "Copied", deadline_s=READY_S, what=lambda: button.text)
    field = search(page, Keys.CONTROL + "v" + Keys.NULL)

    pasted = field.get_attribute("value")
    assert pasted.startswith(
        "**Deadlock** found by dstack:  ```text Trainer.sync and Rollout.pause wait for each other"
    )
    assert "Fix: Raise max_concurrency of Trainer to 2" in pasted
    assert errors(page) == []


@pytest.mark.parametrize("is_dark", [False, True])
def test_all_text_has_contrast(page: Any, is_dark: bool) -> None:
    use_dark_theme(page, is_dark=is_dark)
    try:
        page.execute_script(OPEN)
        wait_until(lambda: page.find_elements("css selector", "g.frame div"), deadline_s=READY_S, what=lambda: "flames")
        found = page.execute_script(CONTRASTS)
    finally:
        use_dark_theme(page, is_dark=False)

    assert len(found) > 30
    assert {kind: worst for kind, worst in found.items() if worst[0] < LOWEST_CONTRAST} == {}
