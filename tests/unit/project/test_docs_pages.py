"""The generated pages of the documentation have every example, and reports as the commands print them."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from docs_hooks import documents, examples, schemas
from docs_hooks.examples import report_block
from dstack.cli import main
from tests.examples.recorded import NAMES, recorded

REPORTED = ("two_actors", "hangs/too_many_gpus", "look_alikes/polling_get")


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    """The pages with the reports of some examples: `make docs` makes them all."""

    def some(name: str) -> str:
        return report_block(name) if name in REPORTED else ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examples, "report_block", some)
        return examples.pages()


def test_every_example_has_a_heading_and_a_line_in_the_index(pages: dict[str, str]) -> None:
    headings = [line for text in pages.values() for line in text.splitlines() if line.startswith("## ")]

    for name in NAMES:
        assert sum(line.startswith(f"## {name} {{") for line in headings) == 1
        assert f"- [{name}](" in pages["examples/index.md"]


@pytest.mark.parametrize("name", REPORTED)
def test_a_report_on_a_page_is_what_the_command_prints(name: str, pages: dict[str, str]) -> None:
    printed = CliRunner().invoke(main, ["show", str(recorded(name))]).stdout

    assert "Observed: " in printed
    assert without_times(printed) in without_times("\n".join(pages.values()))


def without_times(text: str) -> str:
    """Without the lines that have times in the local time zone."""
    return "\n".join(line for line in text.rstrip().splitlines() if not line.startswith("Ray "))


def test_links_of_documents_lead_to_pages(pages: dict[str, str]) -> None:
    text = documents.pages()["reported_hangs.md"]

    assert "](examples/hangs.md#mutual_get)" in text
    assert ".py)" not in text
    assert "](security.md)" in documents.pages()["index.md"]


def test_the_page_of_the_schemas_has_every_type() -> None:
    made = schemas.pages()

    assert all(
        f"{{ #{name} }}" in made["schema.md"]
        for name in ("Document", "DocumentFinding", "StacksDocument", "Snapshot", "Thread")
    )
    assert {"schema/check-2.json", "schema/stacks-1.json", "schema/snapshot-2.json"} < made.keys()
