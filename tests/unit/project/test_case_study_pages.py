"""The pages of the case studies print what the commands print of the snapshots beside them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from dstack.cli import main
from dstack.cli.saved_files import open_files
from tests.paths import ROOT

FOLDER = ROOT / "docs" / "case-studies"
PAGES = sorted(FOLDER.glob("*.md"))
QUOTED = re.compile(
    r"^    dstack (?P<command>\w+) (?:-o )?(?P<file>\w+\.json\.gz)\n\n```text\n(?P<text>.*?)```$",
    re.MULTILINE | re.DOTALL,
)
"""A command on a snapshot, and the text below it."""
SHOWN_BY = {"snapshot": "show"}
"""The command that prints the same of the file that another one has written."""
PICTURE = re.compile(r"\]\((pictures/[\w.]+)\)")


def quotes() -> list[tuple[str, str, str]]:
    """The commands with their files that exist, and the texts below them."""
    found = (match for page in PAGES for match in QUOTED.finditer(page.read_text()))
    return [(one["command"], one["file"], one["text"]) for one in found if (FOLDER / one["file"]).exists()]


def comparable(text: str) -> list[str]:
    """The lines without spaces at their ends, the program's folder, and the time in the local time zone."""
    return [re.sub(r", 20\d\d-.*", "", line.replace("/app/", "")).rstrip() for line in text.splitlines()]


@pytest.mark.parametrize(("command", "file", "text"), quotes(), ids=lambda value: value[:30].partition("\n")[0])
def test_a_quoted_text_is_what_the_command_prints(command: str, file: str, text: str) -> None:
    done = CliRunner().invoke(main, [SHOWN_BY.get(command, command), str(FOLDER / file)])

    assert done.exit_code == 0
    assert "\n".join(comparable(text)) in "\n".join(comparable(done.stdout))


def test_several_texts_are_quoted() -> None:
    assert len(quotes()) >= 5


def test_every_picture_and_snapshot_is_on_a_page() -> None:
    texts = "".join(page.read_text() for page in PAGES)

    assert {path.name for path in (FOLDER / "pictures").iterdir()} == {Path(one).name for one in PICTURE.findall(texts)}
    assert all(f"]({path.name})" in texts for path in FOLDER.glob("*.json.gz"))


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.json.gz")), ids=lambda path: path.name)
def test_every_file_beside_the_pages_is_read(path: Path) -> None:
    files = open_files([str(path)])

    assert len(files.snapshots) + len(files.recordings) == 1


def test_the_commands_that_copy_the_programs_find_them(capsys: pytest.CaptureFixture[str]) -> None:
    code = [one for page in PAGES for one in re.findall(r"python -c '(.*?)'", page.read_text())]

    for line in code:
        exec(line, {})

    assert len(code) == 7
    assert all(Path(path).is_file() for path in capsys.readouterr().out.split())
