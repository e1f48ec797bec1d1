"""What a watch remembers of the calls that it predicts from, and when a possible deadlock is new."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.files.snapshot_file import dumps, load, loads
from dstack.model.prediction import PossibleDeadlock
from dstack.model.snapshot import Snapshot
from dstack.watch.loop import ClusterWatch
from dstack.watch.predictions import PossibleDeadlocks
from dstack.watch.settings import WatchSettings
from tests.unit.scenes.runs import Run

SHOPS = """
import ray

@ray.remote
class Shop:
    def ping(self):
        return 1

    def work(self):
        return ray.get(self.other.ping.remote())

def main():
    a, b = Shop.remote(), Shop.remote()
    ray.get([a.work.remote(), b.work.remote()])
"""


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    """Two actors have asked each other, one after the other."""
    run = Run(tmp_path, SHOPS)
    a, b = run.actor("Shop"), run.actor("Shop")
    for own, other, at in ((a, b, 0.1), (b, a, 0.6)):
        work = run.call("Shop.work", at, at + 0.2, of=own)
        run.call("Shop.ping", at + 0.05, at + 0.1, of=other, by=work)
    return run.snapshot()


def new(remembered: PossibleDeadlocks, snapshot: Snapshot) -> list[PossibleDeadlock]:
    return remembered.new(AnalysedSnapshot.of(remembered.completed(snapshot)))


def without_calls(snapshot: Snapshot) -> Snapshot:
    assert snapshot.history is not None
    return replace(snapshot, history=replace(snapshot.history, attempts=()))


def test_a_possible_deadlock_is_new_once(snapshot: Snapshot) -> None:
    remembered = PossibleDeadlocks()

    assert [len(new(remembered, snapshot)) for _ in range(2)] == [1, 0]
    assert len(remembered) == 1


def test_the_source_of_a_job_that_has_ended_is_remembered(snapshot: Snapshot) -> None:
    """Its last calls are there only after its end, when its source can not be read any more."""
    remembered = PossibleDeadlocks()

    assert not new(remembered, without_calls(snapshot))
    assert new(remembered, replace(snapshot, outlines=()))


def test_a_snapshot_without_a_history_changes_nothing(snapshot: Snapshot) -> None:
    remembered = PossibleDeadlocks()
    remembered.completed(without_calls(snapshot))

    without = replace(snapshot, history=None, outlines=())
    assert remembered.completed(without) is without
    assert not new(remembered, without)
    assert new(remembered, replace(snapshot, outlines=()))


def test_what_the_history_does_not_have_any_more_is_forgotten(snapshot: Snapshot) -> None:
    remembered = PossibleDeadlocks()
    assert snapshot.history is not None
    pair = snapshot.history.attempts[-2].task_id, snapshot.history.attempts[-1].task_id
    shown = replace(snapshot, earlier_waits=(pair,))
    remembered.new(AnalysedSnapshot.of(shown))

    assert remembered.completed(replace(snapshot, outlines=())).earlier_waits == (pair,)
    assert loads(dumps(shown)).earlier_waits == (pair,)
    empty = remembered.completed(replace(without_calls(snapshot), outlines=()))
    assert (empty.earlier_waits, empty.outlines) == ((), ())


def test_the_watch_tells_of_it_once_and_saves_what_shows_it(
    snapshot: Snapshot, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    files = tmp_path / "files"
    watch = ClusterWatch(WatchSettings(address=None, directory=str(files), predict=True))

    for _ in range(2):
        watch._compare(AnalysedSnapshot.of(snapshot), is_only_to_predict=True)

    (file,) = files.iterdir()
    (line,) = capfd.readouterr().err.splitlines()
    assert "possible  2 calls of Shop.work wait for each other for ever if they run at the same time; " in line
    assert line.endswith(str(file))
    assert AnalysedSnapshot.of(load(file)).prediction.possible


def test_without_the_option_it_tells_of_nothing(
    snapshot: Snapshot, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    files = tmp_path / "files"
    watch = ClusterWatch(WatchSettings(address=None, directory=str(files)))

    watch._compare(AnalysedSnapshot.of(snapshot), is_only_to_predict=False)

    assert not list(files.iterdir())
    assert "possible" not in capfd.readouterr().err
