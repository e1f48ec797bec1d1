"""The command ``report`` on saved snapshots and recordings: the page, its file, and wrong usage."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from dstack.cli import main
from dstack.files.sampled_file import PROFILES, RECORDINGS
from dstack.files.snapshot_file import load, save
from tests.examples.recorded import RECORDED
from tests.unit.analysis.stacks.made_profiles import SLEEP, in_turn, line, profile_of
from tests.unit.files.test_sampled_file import RECORDING

FILE = str(RECORDED / "two_actors.json.gz")
OTHER_CLUSTER = str(RECORDED / "ring_of_five.json.gz")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["report", *arguments])


def test_a_page_is_written_for_its_owner_only_and_the_next_step_is_named(tmp_path: Path) -> None:
    page = tmp_path / "hang.html"

    done = run(FILE, "-o", str(page))

    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == f"Saved {page} ({page.stat().st_size / 1e6:.1f} MB). Open it in a browser.\n"
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert "Cashier.order and Kitchen.cook wait for each other" in page.read_text()


def test_the_page_can_go_to_standard_output() -> None:
    done = run(FILE, "-o", "-")

    assert done.stdout.startswith("<!doctype html>")
    assert done.stderr == ""


def test_an_existing_file_is_kept_unless_forced(tmp_path: Path) -> None:
    page = tmp_path / "hang.html"
    page.write_text("mine")

    refused = run(FILE, "-o", str(page))
    assert (refused.exit_code, page.read_text()) == (2, "mine")
    assert run(FILE, "-o", str(page), "--force").exit_code == 0
    assert page.read_text().startswith("<!doctype html>")


def test_the_newest_snapshot_is_shown_in_any_order_of_the_files(tmp_path: Path) -> None:
    one = load(FILE)
    save(replace(one, taken_at=one.taken_at + 60, notes=("the newest",)), tmp_path / "later.json")

    for files in ((FILE, str(tmp_path / "later.json")), (str(tmp_path / "later.json"), FILE)):
        assert "the newest" in run(*files, "-o", "-").stdout


def test_a_directory_is_the_past_of_its_newest_snapshot(tmp_path: Path) -> None:
    one = load(FILE)
    for number in range(3):
        save(replace(one, taken_at=one.taken_at + number), tmp_path / f"{number}.json.gz")
    (tmp_path / "broken.json").write_text("{")

    done = run(str(tmp_path), "-o", "-")

    assert (done.exit_code, done.stdout.count('<tr id="past-')) == (0, 3)
    assert re.fullmatch(r"Note: left out: .*broken\.json is not a valid .*\n", done.stderr)


def test_a_job_is_found_by_its_script() -> None:
    assert "job two_actors.py (02000000) only" in run(FILE, "--job", "two_actors.py", "-o", "-").stdout
    assert "No job is called nothing" in run(FILE, "--job", "nothing", "-o", "-").stderr


def test_recordings_alone_make_no_report(tmp_path: Path) -> None:
    path = tmp_path / "recording.json"
    RECORDINGS.save(RECORDING, path)

    done = run(str(path), "-o", "-")

    assert done.exit_code == 2
    assert "A report needs a snapshot." in done.stderr
    assert "dstack record -o FILE.html" in done.stderr
    assert run(str(path), FILE, "-o", "-").exit_code == 0


def save_profiles(directory: Path) -> list[Path]:
    """Profiles as of a watch, each of a function of its own."""
    paths = [directory / f"profile-2023111{number}-221320.json.gz" for number in (2, 3, 4)]
    for number, path in enumerate(paths):
        path_of_driver = (line(5, f"function_{number}"), SLEEP)
        PROFILES.save(profile_of(in_turn((2, path_of_driver)), began_at=1e9 + 600 * number), path)
    return paths


def test_of_a_directory_of_a_watch_the_latest_profile_is_shown(tmp_path: Path) -> None:
    save(load(FILE), tmp_path / "dstack-20231114-221321.json.gz")
    first, *_ = save_profiles(tmp_path)

    done = run(str(tmp_path), "-o", "-")
    both = run(str(tmp_path), str(first), "-o", "-")
    named = run(FILE, str(first), "-o", "-")

    assert done.stderr == both.stderr == "Note: left out: 2 older profiles.\n"
    assert "Cashier.order and Kitchen.cook wait for each other" in done.stdout
    assert [f"function_{number}" in done.stdout for number in range(3)] == [False, False, True]
    assert (named.stderr, "function_0" in named.stdout) == ("", True)


def test_of_profiles_alone_the_page_is_of_the_latest(tmp_path: Path) -> None:
    save_profiles(tmp_path)

    done = run(str(tmp_path), "-o", "-")

    assert (done.exit_code, done.stderr) == (0, "Note: left out: 2 older profiles.\n")
    assert [f"function_{number}" in done.stdout for number in range(3)] == [False, False, True]


def test_snapshots_of_different_clusters_make_no_report() -> None:
    done = run(FILE, OTHER_CLUSTER, "-o", "-")

    assert done.exit_code == 2
    assert "These are snapshots of different clusters" in done.stderr


@pytest.mark.parametrize("wrong", [[], [FILE, "--address", "auto", "-o", "-"], [FILE, "-o", "page.txt"]])
def test_wrong_usage_ends_with_2(wrong: list[str]) -> None:
    assert run(*wrong).exit_code == 2
