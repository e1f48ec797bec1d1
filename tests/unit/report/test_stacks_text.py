"""The text about all stacks: merged with counts and outliers, or by process; harmless whatever a cluster says."""

from __future__ import annotations

import io

import pytest
from hypothesis import HealthCheck, given
from rich.console import Console

from dstack.analysis.views.all_stacks import By, ChosenStacks
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import load
from dstack.model.snapshot import Snapshot
from dstack.report.stacks_text import WIDTH, print_all_stacks
from dstack.words import UNSEEN
from tests.examples.recorded import RECORDED
from tests.fuzzing.effort import examples
from tests.fuzzing.hostile_text import hostile
from tests.paths import RECORDED_CLUSTERS, ROOT
from tests.unit.scenes import Scene
from tests.unit.support.random_snapshots import related_snapshots

BY: tuple[By, ...] = ("class", "rank", "process")


def text_of(snapshot: Snapshot, by: By = "class", *, whole: bool = False, terminal: int | None = None) -> str:
    out = io.StringIO()
    console = Console(file=out, highlight=False, force_terminal=terminal is not None, width=terminal)
    print_all_stacks(console, ChosenStacks(AnalysedSnapshot.of(snapshot).stacks, whole=whole), by)
    return out.getvalue()


def test_a_group_begins_with_its_number_and_where_it_is() -> None:
    text = text_of(load(RECORDED_CLUSTERS / "torch-mesh-ray-2.60.json.gz"))

    assert text.splitlines()[0] == (
        "5 stacks of 5 processes: 4 waiting, 1 off CPU; "
        "1 outlier: rank 3 is in other code than ranks 0-2 (all of stage=train)"
    )
    assert (
        "4 × actor Trainer  3 in all_reduce of torch.distributed at mesh.py:20, 1 in Trainer.step at mesh.py:19" in text
    )
    assert "└── 1 × Trainer.step  /srv/app/mesh.py:19  off CPU  rank 3  time.sleep(1000)" in text
    assert "        ! rank 3 is in other code than ranks 0-2" in text


def test_the_page_on_commands_shows_what_is_printed() -> None:
    text = text_of(load(RECORDED_CLUSTERS / "torch-mesh-ray-2.60.json.gz"))
    shown = [f"    {line}".rstrip() for line in text.partition("\nLeft out")[0].rstrip().splitlines()]

    assert "\n".join(shown) in (ROOT / "docs" / "commands.md").read_text()


def test_frames_that_all_share_are_one_branch_and_the_number_is_said_once() -> None:
    text = text_of(load(RECORDED / "worker_tree.json.gz"))

    assert "2 × count  examples/worker_tree.py:24  return sum(ray.get(children))\n│       ray.get  " in text


def test_each_process_has_its_threads_and_idle_processes_are_one_line() -> None:
    text = text_of(load(RECORDED / "hangs" / "libraries" / "torch_driver_in_all_reduce.json.gz"), "process")

    assert "node 192.0.2.2  3 processes, head" in text
    assert "├── waits  driver torch_driver_in_all_reduce.py  all_reduce of torch.distributed" in text
    assert "3 threads of Ray and its libraries" in text
    assert "2 other processes (pid 9001 and 9002): each is idle" in text


def test_whole_stacks_have_the_frames_of_ray_and_the_other_threads() -> None:
    snapshot = load(RECORDED / "two_actors.json.gz")

    assert len(text_of(snapshot, "process", whole=True).splitlines()) > len(text_of(snapshot, "process").splitlines())
    assert "threads of Ray and its libraries\n" not in text_of(snapshot, "process", whole=True).partition("Left out")[0]


def test_a_process_that_was_not_read_is_named() -> None:
    scene = Scene()
    scene.driver().is_in("queue.Queue.get", "0x1")
    silent = scene.worker()
    silent.is_unreachable = silent.is_unreadable = True

    assert "Not read: worker" in text_of(scene.snapshot())


def test_an_empty_cluster_has_no_stacks() -> None:
    assert text_of(Scene().snapshot()).startswith("0 stacks of 0 processes\n")


def test_there_are_colours_only_on_a_terminal_and_lines_have_its_width() -> None:
    snapshot = load(RECORDED / "two_actors.json.gz")

    assert "\x1b[" in text_of(snapshot, terminal=60)
    assert "\x1b[" not in text_of(snapshot)
    assert max(map(len, text_of(snapshot).splitlines())) <= WIDTH


@pytest.mark.parametrize("by", BY)
def test_hostile_names_are_harmless(by: By) -> None:
    text = text_of(hostile(load(RECORDED / "two_actors.json.gz")), by, whole=True)

    assert not any(UNSEEN.search(line) for line in text.splitlines())


@examples(50, suppress_health_check=[HealthCheck.too_slow])
@given(related_snapshots())
def test_generated_snapshots_have_a_text(snapshot: Snapshot) -> None:
    for by in BY:
        assert not any(UNSEEN.search(line) for line in text_of(snapshot, by, whole=True).split("\n"))
