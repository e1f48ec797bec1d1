"""The stacks and tables of a report in a real browser: search, links, sorting, filters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.report.page.pages import report_page
from tests.browsers import errors, requests
from tests.processes import wait_until
from tests.unit.scenes.ranks import training
from tests.unit.support.html_elements import ATTACK

READY_S = 60.0
MIB = 2**20
RANKS = 8


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on a run whose rank 3 is in other code; each rank uses more memory, the driver an unknown amount."""
    scene, trainers = training()
    for number, trainer in enumerate(trainers):
        trainer.known |= {"rss_bytes": (100 + number) * MIB, "started_at": 1.0}
    snapshot = scene.snapshot()
    actors = tuple(replace(actor, name=f"t{number} {ATTACK}") for number, actor in enumerate(snapshot.actors))
    found = tmp_path_factory.mktemp("report") / "report.html"
    found.write_bytes(report_page(AnalysedSnapshot.of(replace(snapshot, actors=actors))))
    return found


def type_into(page: Any, field: str, text: str) -> str:
    """The status beside a search field after this text has replaced what is in it."""
    page.execute_script(
        "const field = document.querySelector(arguments[0]); field.value = arguments[1];"
        "field.dispatchEvent(new Event('input', {bubbles: true}))",
        f"{field} input",
        text,
    )
    return str(page.execute_script("return document.querySelector(arguments[0]).textContent", f"{field} [role=status]"))


def click(page: Any, element: Any) -> None:
    """Click it wherever it is."""
    page.execute_script("arguments[0].click()", element)


def visible_stacks(page: Any) -> list[str]:
    script = (
        "return [...document.querySelectorAll('.stack')].filter((one) => one.checkVisibility()).map((one) => one.id)"
    )
    return list(page.execute_script(script))


def column(page: Any, number: int) -> list[str]:
    script = (
        "return [...document.querySelectorAll('table.workers tbody tr')].filter((row) => !row.hidden)"
        ".map((row) => row.cells[arguments[0]].textContent)"
    )
    return list(page.execute_script(script, number))


def head(page: Any, title: str) -> Any:
    heads = page.find_elements("css selector", "table.workers th")
    return next((at, one) for at, one in enumerate(heads) if one.text.startswith(title))


def test_names_are_no_code_and_there_are_no_errors(page: Any) -> None:
    assert requests(page) == []
    assert errors(page) == []
    assert page.execute_script("return window.hacked === undefined && !document.querySelector('img')")


def test_a_search_shows_stacks_that_have_all_words_and_their_number(page: Any) -> None:
    everything = visible_stacks(page)

    assert type_into(page, ".stacks", "trainer rank:3") == f"1 of {RANKS + 1} stacks match"
    assert len(visible_stacks(page)) < len(everything)
    assert type_into(page, ".stacks", "rank:30") == f"0 of {RANKS + 1} stacks match"
    assert visible_stacks(page) == []
    assert type_into(page, ".stacks", "ALL_REDUCE tp:1") == f"3 of {RANKS + 1} stacks match"
    assert page.execute_script("return document.querySelectorAll('.hit').length") > 0
    assert type_into(page, ".stacks", "") == ""
    assert visible_stacks(page) == everything


def test_a_link_of_a_finding_opens_its_stack_though_it_is_folded_and_filtered(page: Any) -> None:
    (link,) = page.find_elements("css selector", "#findings a[href^='#stack-']")[:1]
    stack = link.get_attribute("href").rpartition("#")[2]
    type_into(page, ".stacks", "no such stack")
    page.execute_script("for (const one of document.querySelectorAll('details')) one.open = false")
    assert visible_stacks(page) == []

    click(page, link)

    is_shown = (
        "const one = document.getElementById(arguments[0]), box = one.getBoundingClientRect();"
        "return one.checkVisibility() && box.top >= 0 && box.top < innerHeight"
    )
    wait_until(lambda: page.execute_script(is_shown, stack), deadline_s=READY_S, what=lambda: f"{stack} is not shown")


def test_a_click_on_a_head_sorts_and_another_reverses(page: Any) -> None:
    at, memory = head(page, "Memory")
    button = memory.find_element("css selector", "button")
    upwards = [f"{100 + number}M" for number in range(RANKS)]

    click(page, button)
    assert column(page, at)[:RANKS] == upwards[::-1]
    assert set(column(page, at)[RANKS:]) == {"-"}
    assert memory.get_attribute("aria-sort") == "descending"
    click(page, button)
    assert column(page, at)[:RANKS] == upwards
    assert set(column(page, at)[RANKS:]) == {"-"}
    assert memory.get_attribute("aria-sort") == "ascending"

    name_at, name = head(page, "Name")
    click(page, name.find_element("css selector", "button"))
    assert column(page, name_at) == sorted(column(page, name_at), key=str.lower)
    assert memory.get_attribute("aria-sort") is None


def test_a_filter_shows_the_rows_with_all_words(page: Any) -> None:
    found = column(page, 1)
    field = "div.filterable:has(table.workers)"

    assert type_into(page, field, "trainer rank:3") == f"1 of {len(found)} rows match"
    assert len(column(page, 1)) == 1
    type_into(page, field, "")
    assert column(page, 1) == found


def test_the_address_of_a_stack_leads_to_it(page: Any, path: Path) -> None:
    script = "return [...document.querySelectorAll('.stack[id]')].at(-1).id"
    stack = page.execute_script(script)
    page.get("about:blank")
    page.get(f"{path.as_uri()}#{stack}")

    wait_until(lambda: stack in visible_stacks(page), deadline_s=READY_S, what=lambda: f"{stack} is not shown")
