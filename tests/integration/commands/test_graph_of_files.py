"""``dstack graph`` of saved snapshots: formats, files, options and errors."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from dstack.cli import main
from dstack.files.document_file import to_json
from dstack.files.snapshot_file import load, save
from dstack.model.profile import Endpoint, Traffic
from dstack.observed.node import Failure
from tests.clusters.dstack_command import dstack
from tests.paths import RECORDED_CALLS
from tests.unit.analysis.stacks.made_profiles import profile_of

FILE = str(RECORDED_CALLS)


def graph(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["graph", *arguments])


def test_text_goes_to_standard_output() -> None:
    done = graph(FILE)

    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.startswith("121 calls within 14 s: 116 finished, 1 failed, 2 running, 2 pending\n")
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("name", "options", "begins"),
    [
        ("calls.svg", (), b"<svg "),
        ("calls.png", (), b"\x89PNG"),
        ("calls.dot", (), b"digraph calls {"),
        ("calls.gv", (), b"digraph calls {"),
        ("calls.json", (), b"{\n"),
        ("calls.txt", (), b"121 calls"),
        ("calls.txt", ("--format", "dot"), b"digraph calls {"),
    ],
)
def test_the_suffix_or_the_option_chooses_the_format(
    tmp_path: Path, name: str, options: tuple[str, ...], begins: bytes
) -> None:
    file = tmp_path / name
    done = graph(FILE, "-o", str(file), *options)

    assert (done.exit_code, done.stdout) == (0, "")
    assert file.read_bytes().startswith(begins)
    is_dot = begins.startswith(b"digraph")
    assert done.stderr.startswith(f"Saved. Draw it with: dot -Tsvg -O {file}" if is_dot else "Saved. ")
    assert file.stat().st_mode & 0o777 == 0o600


def test_an_existing_file_is_kept_without_force(tmp_path: Path) -> None:
    file = tmp_path / "calls.dot"
    file.write_text("mine")
    refused = graph(FILE, "-o", str(file))

    assert (refused.exit_code, file.read_text()) == (2, "mine")
    assert "already exists" in refused.stderr
    assert graph(FILE, "-o", str(file), "--force").exit_code == 0
    assert file.read_text().startswith("digraph")


def test_one_job_can_be_selected() -> None:
    done = graph(FILE, "--format", "json", "--job", "pipeline.py")
    document = json.loads(done.stdout)

    assert document["job"] == "01000000"
    assert len(document["edges"]) == 9
    unknown = graph(FILE, "--job", "other.py")
    assert unknown.exit_code == 2
    assert "Known jobs: 01000000 (pipeline.py)." in unknown.stderr


def test_a_snapshot_without_history_has_a_note(tmp_path: Path) -> None:
    file = tmp_path / "none.json"
    save(replace(load(RECORDED_CALLS), history=None), file)
    as_json, done = graph(str(file), "--format", "json"), graph(str(file))

    assert (as_json.exit_code, done.exit_code, done.stderr) == (0, 0, "")
    assert as_json.stderr == "Note: the history of tasks is missing, so only unfinished calls are known.\n"
    assert json.loads(as_json.stdout)["history"] is None
    assert "This snapshot has no history: only calls that have not ended are known." in done.stdout
    assert "→ Rollout.pause" in done.stdout
    assert "tokenize" not in done.stdout


def test_a_lack_of_events_is_said(tmp_path: Path) -> None:
    file, page = tmp_path / "none.json", tmp_path / "page.html"
    lack = Failure(stage="task events", reason="Ray has no events", cause="missing", remedy="Start the dashboard.")
    save(replace(load(RECORDED_CALLS), history=None, failures=(lack,)), file)
    timeline = CliRunner().invoke(main, ["timeline", str(file)])
    calls = graph(str(file))
    report = CliRunner().invoke(main, ["report", str(file), "-o", str(page)])

    assert timeline.exit_code == 2
    assert "has no history of tasks: Ray has no events." in timeline.stderr
    assert "Start the dashboard." in timeline.stderr
    assert (calls.exit_code, calls.stderr) == (0, "Note: Ray has no events. Start the dashboard.\n")
    assert report.exit_code == 0
    assert page.read_text().count("Ray has no events") == 1


def test_impossible_requests_are_refused() -> None:
    both = graph(FILE, "--address", "127.0.0.1:1")

    assert both.exit_code == 2
    assert "FILE cannot be combined with --address." in both.stderr
    assert graph("none.json").exit_code == 3
    assert graph(FILE, "--by", "colour").exit_code == 2
    unknown = graph(FILE, "-o", "calls.pdf")
    assert unknown.exit_code == 2
    assert "calls.pdf ends in none of .svg, .png, .dot, .gv, .json and .txt." in unknown.stderr


def test_a_terminal_without_unicode_gets_ascii() -> None:
    done = dstack("graph", FILE, environment={**os.environ, "PYTHONIOENCODING": "ascii"})

    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "Rollout.pause" in done.stdout


def test_the_data_of_a_profile_of_the_same_cluster_is_added(tmp_path: Path) -> None:
    snapshot, file = load(RECORDED_CALLS), tmp_path / "profile.json"
    job_id = snapshot.jobs[0].job_id
    traffic = Traffic(Endpoint("driver", job_id=job_id), Endpoint("actor", "Store", "put", job_id), 3, 3 << 20)
    profile = replace(profile_of([]), address=snapshot.address, traffic=(traffic,))
    file.write_bytes(to_json(profile))
    added, refused = graph(FILE, "--profile", str(file)), graph(FILE, "--profile", str(file), "--by", "instance")
    file.write_bytes(to_json(replace(profile, address="10.9.9.9:6379")))
    other = graph(FILE, "--profile", str(file))

    assert added.exit_code == 0, added.output
    assert "\nData: at least 3.0 MiB in 3 objects from driver pipeline.py to Store\n" in added.stdout
    assert (refused.exit_code, other.exit_code) == (2, 2)
    assert "--profile cannot be combined with --by instance." in refused.stderr
    assert "The profile is of another cluster than the snapshot." in other.stderr
