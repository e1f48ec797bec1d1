"""Help of the command, as a terminal of 80 columns shows it."""

from __future__ import annotations

import re

from click.testing import CliRunner

from dstack.cli import SECTIONS, main


def test_help_lists_each_command_once_by_its_purpose_in_one_whole_line() -> None:
    text = CliRunner().invoke(main, ["--help"], terminal_width=80).stdout
    rows = re.findall(r"^  (\w+)  +(\S.*)$", text, re.MULTILINE)

    assert {name for name, _ in rows} == set(main.commands) <= {name for names in SECTIONS.values() for name in names}
    assert len(rows) == len(main.commands)
    assert all(about.endswith(".") and not about.endswith("...") for _, about in rows)
    assert max(map(len, text.splitlines())) <= 80
