"""A page of a cluster whose every text is an attack: in a real browser none of them runs, and nothing is requested."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import load
from dstack.report.page.pages import report_page
from tests.browsers import errors, open_page, requests
from tests.fuzzing.hostile_text import ATTACKED, HOSTILE_TO_PAGES, PAGE_ATTACKS, hostile, hostile_recording, naming
from tests.paths import RECORDED_CALLS
from tests.unit.files.test_sampled_file import RECORDING

FILES = ["javascript:window.hacked=1//.py", f"/srv/{HOSTILE_TO_PAGES}.py", "//hacked.example/x.py", "data:text/html,x"]
OPEN = """
for (const one of document.querySelectorAll("details")) one.open = true;
for (const one of document.querySelectorAll("[hidden]")) one.hidden = false;
"""
EXERCISE = """
for (const one of document.querySelectorAll("main *")) {
  for (const name of ["mouseover", "mouseenter", "focus"]) one.dispatchEvent(new Event(name, {bubbles: true}));
}
for (const one of document.querySelectorAll("input")) {
  one.value = "hacked";
  for (const name of ["input", "change"]) one.dispatchEvent(new Event(name, {bubbles: true}));
}
for (const one of document.querySelectorAll("main a, main button, main summary, main th, main td")) {
  if (one.click) one.click();
  else one.dispatchEvent(new MouseEvent("click", {bubbles: true, cancelable: true})); // of an SVG
}
"""
"""Opens, hovers, searches and clicks everything."""
FOREIGN = f"""
return [...document.querySelectorAll("*")].filter((one) =>
  one.localName.includes("{ATTACKED}") || ["img", "iframe", "base", "object", "embed"].includes(one.localName) ||
  [...one.attributes].some((attribute) => attribute.name.startsWith("on") || attribute.name.includes("{ATTACKED}")) ||
  (one.localName === "a" && !one.getAttribute("href").startsWith("#"))).map((one) => one.outerHTML);
"""
"""Elements of the page that cannot be its own."""


@pytest.fixture(scope="module")
def page() -> bytes:
    snapshot = naming(hostile(load(RECORDED_CALLS), HOSTILE_TO_PAGES), FILES)
    snapshot = replace(snapshot, sources={file: {1: HOSTILE_TO_PAGES} for file in FILES})
    before = replace(snapshot, taken_at=snapshot.taken_at - 60, samples=())
    recording = hostile_recording(RECORDING, HOSTILE_TO_PAGES)
    named = [(HOSTILE_TO_PAGES, recording)]
    return report_page(AnalysedSnapshot.of(snapshot), [AnalysedSnapshot.of(before)], named)


def is_hacked(browser: Any) -> bool:
    return bool(browser.execute_script("return 'hacked' in window"))


def test_no_attack_runs_and_nothing_is_requested(browser: Any, page: bytes, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_bytes(page)
    open_page(browser, path)
    assert browser.execute_script(FOREIGN) == []
    browser.execute_script(OPEN + EXERCISE)
    _hover_over_charts(browser)

    assert not is_hacked(browser)
    assert browser.execute_script(FOREIGN) == []
    assert requests(browser) == []
    assert errors(browser) == []


def test_the_test_would_notice_an_attack(browser: Any, page: bytes, tmp_path: Path) -> None:
    unescaped = (PAGE_ATTACKS["script"] + PAGE_ATTACKS["image"]).encode()
    attacked, unprotected = tmp_path / "attacked.html", tmp_path / "unprotected.html"
    attacked.write_bytes(page.replace(b"<main>", b"<main>" + unescaped))
    unprotected.write_bytes(re.sub(rb"<meta http-equiv[^>]*>", b"", attacked.read_bytes(), count=1))

    open_page(browser, attacked)
    assert not is_hacked(browser)  # the policy is the second line of defence
    assert browser.execute_script(FOREIGN) != []
    assert any("Content Security Policy" in error for error in errors(browser))

    open_page(browser, unprotected)
    assert is_hacked(browser)


def _hover_over_charts(browser: Any) -> None:
    """Show the tooltips of some points of each chart."""
    from selenium.webdriver import ActionChains

    browser.execute_script(OPEN)
    for chart in browser.find_elements("css selector", "div.chart"):
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
        for right, down in ((-200, 0), (0, -10), (150, 10)):
            ActionChains(browser, duration=0).move_to_element_with_offset(chart, right, down).perform()
