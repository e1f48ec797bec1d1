"""Untrusted text cannot control a terminal, wherever it is printed."""

from __future__ import annotations

import json
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.errors import ClusterError, DstackError, UsageError
from dstack.files.document_file import to_json
from dstack.pytest_plugin import inspection
from dstack.pytest_plugin.inspection import Inspection
from dstack.words import LONGEST, UNSEEN, visible, visible_lines
from tests.fuzzing.hostile_text import ATTACKS as FROM_STRANGERS
from tests.fuzzing.hostile_text import hostile
from tests.tui.sources import recorded

ATTACKS = {**FROM_STRANGERS, "surrogate": "caf\udce9"}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_an_attack_is_shown_and_not_executed(attack: str) -> None:
    for text in (visible(attack), visible_lines(attack), str(ClusterError(attack, attack)), repr(DstackError(attack))):
        assert not UNSEEN.search(text.replace("\n", ""))
        assert "\\" in text
    assert "\n" not in visible(attack)


def test_control_and_format_characters_are_escaped() -> None:
    through = [
        one for one in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(one) in ("Cc", "Cs", "Zl", "Zp")
    ]

    assert {visible(one)[:1] for one in through} == {"\\", " "}
    assert [one for one in through if visible(one) == " "] == ["\t"]


def test_bidirectional_controls_are_escaped() -> None:
    turning = [
        one
        for one in map(chr, range(sys.maxunicode + 1))
        if unicodedata.bidirectional(one) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
    ]

    assert len(turning) == 9
    assert all(visible(one).startswith("\\u") for one in turning)


def test_a_long_text_is_cut_in_the_middle() -> None:
    shown = visible("\x1b" + "x" * 10**8 + "end")

    assert len(shown) < LONGEST + 20
    assert shown.startswith("\\x1bxx")
    assert shown.endswith("xxend")


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_json_contains_the_text_in_escaped_form(attack: str) -> None:
    text = to_json({attack: [attack]}).decode()

    assert not UNSEEN.search(text)
    said = attack.encode(errors="backslashreplace").decode()
    assert json.loads(text) == {said: [said]}


@pytest.mark.parametrize("option", [[], ["-v"]])
@pytest.mark.parametrize("command", ["show", "check", "no"])
def test_errors_do_not_control_the_terminal(tmp_path: Path, command: str, option: list[str]) -> None:
    name = "".join(one for text in ATTACKS.values() for one in text if one not in "\0/")
    arguments = [*option, command, f"{name[:100]}.json", f"{name}"]

    for count in (-1, len(arguments)):  # a file that is not there; one argument too many
        done = subprocess.run(
            [sys.executable, "-m", "dstack", *arguments[:count]], cwd=tmp_path, capture_output=True, check=False
        )

        printed = done.stderr.decode()
        assert done.returncode in (2, 3)
        assert "Error: " in printed
        assert not UNSEEN.search(printed.replace("\n", ""))
        assert done.stdout == b""


def test_an_error_keeps_its_message() -> None:
    error = UsageError("naïve × 漢字", "Don't.")

    assert (error.message, error.remedy, str(error)) == ("naïve × 漢字", "Don't.", "naïve × 漢字 Don't.")


def test_the_await_of_a_test_is_shown_and_not_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    attacked = hostile(recorded("serve-coroutines"))
    inspected = Inspection(AnalysedSnapshot.of(attacked), "")
    printed = ""

    for worker in attacked.workers:
        monkeypatch.setattr(inspection, "own_worker", lambda _, worker=worker: worker)
        printed += inspected.coroutine_lines()

    assert "[@click=app.quit]" in printed
    assert not UNSEEN.search(printed.replace("\n", ""))
