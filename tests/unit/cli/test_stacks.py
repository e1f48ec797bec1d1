"""The command ``stacks`` on saved snapshots: formats, files and wrong options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dstack.cli import main
from dstack.files.snapshot_file import load
from tests.examples.recorded import RECORDED
from tests.paths import RECORDED_CLUSTERS

FILE = str(RECORDED / "two_actors.json.gz")
SNAPSHOT = load(FILE)
CASHIER = next(actor for actor in SNAPSHOT.actors if actor.class_name == "Cashier")
CASHIER_IP = SNAPSHOT.nodes[0].ip


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["stacks", *arguments])


def test_text_is_the_default() -> None:
    done = run(FILE)

    assert done.exit_code == 0
    assert done.stdout.startswith("3 stacks of 3 processes: 3 waiting\n")
    assert "1 × driver two_actors.py  in ray.get at two_actors.py:" in done.stdout


@pytest.mark.parametrize("form", [["--json"], ["--format", "json"]])
def test_json_is_a_versioned_document(form: list[str]) -> None:
    document = json.loads(run(FILE, *form, "--by", "process").stdout)

    assert (document["schema"], document["by"], document["count"]) == ("dstack.stacks/1", "process", 3)


def test_folded_stacks_end_in_their_number() -> None:
    lines = run(FILE, "--format", "folded").stdout.splitlines()

    assert len(lines) == 3
    assert all(line.endswith(") 1") for line in lines)


def test_a_file_is_kept_unless_forced_and_the_next_step_is_named(tmp_path: Path) -> None:
    out = tmp_path / "stacks.json"

    first = run(FILE, "--format", "speedscope", "-o", str(out))
    again = run(FILE, "--format", "speedscope", "-o", str(out))
    forced = run(FILE, "-o", str(out), "--force")

    assert (first.exit_code, again.exit_code, forced.exit_code) == (0, 2, 0)
    assert first.stderr == f"Saved {out}. Open it at https://www.speedscope.app\n"
    assert "already exists" in again.stderr
    assert out.read_text().startswith("3 stacks of 3 processes")
    assert forced.stdout == ""


@pytest.mark.parametrize(
    "wrong",
    [
        [FILE, "--address", "auto"],
        [FILE, "--native"],
        [FILE, "--json", "--format", "folded"],
        [FILE, "--by", "colour"],
        [FILE, "--job", "nothing"],
    ],
)
def test_wrong_usage_ends_with_2(wrong: list[str]) -> None:
    assert run(*wrong).exit_code == 2


def test_a_missing_file_ends_with_3() -> None:
    assert run("nowhere.json").exit_code == 3


@pytest.mark.parametrize(
    "what",
    [
        ["Cashier"],
        ["cashier"],
        ["actor", "Cashier"],
        ["Cashier.order"],
        ["order"],
        [CASHIER.actor_id[:8]],
        ["pid", str(CASHIER.pid)],
        [str(CASHIER.pid)],
        ["two_actors.py:22"],
        ["Cashier.order two_actors.py:22"],
    ],
)
def test_a_process_is_selected_by_what_it_is_called(what: list[str]) -> None:
    text = run(FILE, *what).stdout

    assert text.startswith("1 stack of 1 process: 1 waiting\n")
    assert f'└── actor Cashier "cashier"  pid {CASHIER.pid}\n' in text
    assert "waits  Cashier.order  ray.get → Kitchen.cook" in text


def test_several_processes_are_selected_and_merged_only_if_asked() -> None:
    listed = run(FILE, "Cashier", "Kitchen.cook", "two_actors.py").stdout
    merged = run("Kitchen", FILE, "--by", "class").stdout

    assert listed.startswith("3 stacks of 3 processes")
    assert "1 × actor Kitchen  in ray.get at two_actors.py:" in merged


def test_all_processes_of_a_node_are_selected_by_its_address() -> None:
    assert run(FILE, "node", CASHIER_IP).stdout.startswith("3 stacks of 3 processes")


@pytest.mark.parametrize("command", ["stacks", "logs"])
@pytest.mark.parametrize(("wrong", "close"), [("Kashier", "Cashier"), ("kitchen.cok", "Kitchen.cook")])
def test_an_unknown_name_is_answered_with_names_like_it(command: str, wrong: str, close: str) -> None:
    done = CliRunner().invoke(main, [command, FILE, wrong])

    assert done.exit_code == 2
    assert f"No process is called {wrong!r}." in done.stderr
    assert f"Did you mean {close}" in done.stderr


def test_no_other_process_has_a_pid_that_none_has() -> None:
    assert run(FILE, "1").exit_code == 2


def test_two_files_are_refused() -> None:
    assert "are 2 files" in run(FILE, FILE).stderr


def test_a_chosen_process_without_code_of_the_application_has_its_other_threads() -> None:
    text = run(str(RECORDED_CLUSTERS / "serve-idle-ray-2.60.json.gz"), "ServeController").stdout

    assert text.startswith("1 process without code of the application\n")
    assert "worker  Worker.main_loop" in text


def test_a_directory_is_a_file_only_if_no_file_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Cashier").mkdir()
    monkeypatch.chdir(tmp_path)

    assert run(FILE, "Cashier").stdout.startswith("1 stack of 1 process")
    assert "Cashier is a directory." in run("Cashier").stderr
