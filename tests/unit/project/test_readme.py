"""The options that the documents name exist, on the commands that they name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from docs_hooks.readme import PICTURES, README, pictures
from dstack.cli import main
from dstack.pytest_plugin.options import _OPTIONS
from tests.paths import ROOT

DOCS = ROOT / "docs"
DOCUMENTS = [README, ROOT / "SECURITY.md", *sorted(DOCS.rglob("*.md"))]
FLAG = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")
COMMAND = re.compile(rf"\bdstack ({'|'.join(main.commands)})\b")
OTHERS = {"--cap-add", "--pid", "--junitxml", "--upgrade", "--no-deps", "--wheel-dir", "--with", "--force", "--from"}
OTHERS |= {"--head", "--num-gpus", "--num-cpus", "--resources", "--no-wait", "--submission-id"}
OTHERS |= {"--build-arg", "--custom", "--dashboard-host", "--image", "--target", "--nonblocking"}
"""Options of py-spy, Docker, pytest, pip, uv, pipx, ray start, ray job and kubectl."""


def options_of(command: click.Command, *, is_hidden: bool = False) -> set[str]:
    """The options that the help of a command lists, or the obsolete ones; without --help, which all have."""
    return {
        name
        for one in command.params
        if isinstance(one, click.Option) and one.hidden == is_hidden
        for name in (*one.opts, *one.secondary_opts)
    }


ALL = {name: options_of(command) for name, command in main.commands.items()}
OBSOLETE = {name for command in main.commands.values() for name in options_of(command, is_hidden=True)}


def table() -> dict[str, set[str]]:
    """The commands that the table of options lists, by option."""
    rows = [line.split("|") for line in (DOCS / "commands.md").read_text().splitlines() if re.match(r"\| `-", line)]
    return {flag: set(re.findall(r"`(\w+)`", row[2])) for row in rows for flag in re.findall(r"`(-[^` ]+)`", row[1])}


def code_of(document: Path) -> Iterator[str]:
    """The lines and spans of code that begin with a command of dstack."""
    text = document.read_text()
    spans = [*re.findall(r"`([^`\n]+)`", text), *re.findall(r"^    (.+)$", text, re.MULTILINE)]
    return (span for span in spans if COMMAND.match(span))


def test_the_table_lists_each_option_on_the_commands_that_have_it() -> None:
    listed = table()

    assert listed, "the page on commands has a table of options"
    for flag, commands in listed.items():
        assert commands == {name for name, options in ALL.items() if flag in options}, flag


def test_the_table_lists_all_options_of_snapshot_and_those_of_several_commands() -> None:
    several = {flag for options in ALL.values() for flag in options if sum(flag in one for one in ALL.values()) > 1}

    assert table().keys() == several | ALL["snapshot"]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_option_named_with_a_command_is_its_option(document: Path) -> None:
    for code in code_of(document):
        command = COMMAND.match(code)
        assert command
        flags = set(FLAG.findall(re.split(r"  |\||'", code[command.end() :])[0]))
        assert flags <= ALL[command[1]] | {"--help"}, code


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_option_that_is_named_exists(document: Path) -> None:
    known = (
        set().union(*ALL.values()) | options_of(main) | {f"--dstack-{name}" for name in _OPTIONS} | OTHERS | {"--help"}
    )
    named = {flag for flag in FLAG.findall(document.read_text()) if flag.startswith("--")}

    assert named <= known | OBSOLETE


def test_the_page_on_watch_names_all_its_options() -> None:
    page = (DOCS / "watch.md").read_text()

    assert {flag for flag in FLAG.findall(page) if flag.startswith("--")} <= ALL["watch"]
    assert ALL["watch"] - {"--address", "--timeout"} <= set(FLAG.findall(page))


def test_the_page_on_pytest_names_all_options_of_the_plugin() -> None:
    page = (DOCS / "pytest.md").read_text()

    assert set(re.findall(r"^\| `(--dstack-[a-z-]+)`", page, re.MULTILINE)) == {f"--dstack-{name}" for name in _OPTIONS}


def test_the_pictures_have_the_report_as_it_is_printed() -> None:
    drawn = {name: (PICTURES / name).read_text() for name in pictures()}

    assert drawn == pictures(), "update them: python -m docs_hooks.readme"


def test_the_pictures_of_the_readme_exist_in_a_light_and_a_dark_form() -> None:
    named = re.findall(r'(?:src|srcset)="([^"]+)"', README.read_text())

    assert len(named) == 4
    assert all((ROOT / name).is_file() for name in named)


def test_the_readme_is_short() -> None:
    assert len(README.read_text().split()) <= 700


def test_the_readme_has_the_figures_that_were_measured() -> None:
    claim = re.search(
        r"of 25 blocked\s+workers took ([\d.]+) s, and `ray stack`'s loop (\d+) times as long", README.read_text()
    )
    section = (DOCS / "performance.md").read_text().partition("\n## 25 blocked workers on one node,")[2]
    row = re.search(r"\| dstack, warm sample \| ([\d.]+) \|[^|]+\| (\d+)", section)

    assert claim
    assert row
    assert claim.groups() == row.groups()
