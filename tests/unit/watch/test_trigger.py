"""The age of unchanged tasks, and the times of snapshots, with a simulated clock."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dstack.model.snapshot import ClusterPoll, WorkerPoll
from dstack.watch.trigger import FIRST_REPEAT, MAX_GAP_S, ProgressTracker, SnapshotTrigger

STUCK_AFTER_S = 60.0
SHARE = 0.01


def worker(name: str = "w", **fields: Any) -> WorkerPoll:
    return WorkerPoll(worker_id=name, **{"pending": {}, **fields})


def observed(*polls: tuple[float, ClusterPoll]) -> ProgressTracker:
    progress = ProgressTracker()
    for at_s, poll in polls:
        progress.update(poll, at_s)
    return progress


def ages(progress: ProgressTracker, task_id: str, now_s: float) -> list[float]:
    """How long a task is unchanged, in whole seconds, for each worker that reports it."""
    items = [item for item in progress.unchanged_for(0, now_s) if item[1] == task_id]
    return [max(age for age in range(1000) if item in progress.unchanged_for(age, now_s)) for item in items]


def of(*workers: WorkerPoll, silent: tuple[str, ...] = ()) -> ClusterPoll:
    return ClusterPoll(workers=workers, silent=silent)


def test_a_running_task_is_stable_since_it_was_first_observed() -> None:
    progress = observed(*((at, of(worker(running=("t",)))) for at in (0, 30, 60)))

    assert ages(progress, "t", 60) == [60]
    assert progress.longest_unchanged_s(60) == 60
    assert ("w", "t") in progress.unchanged_for(60, 60)
    assert not progress.unchanged_for(61, 60)


def test_a_task_that_runs_elsewhere_has_changed() -> None:
    progress = observed((0, of(worker("a", running=("t",)))), (60, of(worker("b", running=("t",)))))

    assert ages(progress, "t", 60) == [0]


def test_a_pending_task_is_stable_until_its_state_changes() -> None:
    pending, running = (
        of(worker(pending={"t": state, "u": "PENDING_ARGS_AVAIL"}))
        for state in ("PENDING_ARGS_AVAIL", "SUBMITTED_TO_WORKER")
    )
    progress = observed((0, pending), (60, running))

    assert (ages(progress, "t", 60), ages(progress, "u", 60)) == ([0], [60])


def test_absent_tasks_are_forgotten() -> None:
    progress = observed((0, of(worker(running=("t",)))), (30, of()))

    assert not ages(progress, "t", 30)
    assert not progress.present


def test_tasks_of_an_unreachable_worker_remain_known() -> None:
    one = of(worker(running=("t",)))
    progress = observed((0, one), (30, of(silent=("w",))), (60, one))

    assert ages(progress, "t", 60) == [60]


def test_a_driver_is_stable_while_its_counters_are() -> None:
    first, second = (of(worker(is_driver=True, counters=(count,))) for count in (1, 2))

    assert observed((0, first), (60, first)).unchanged_for(60, 60)
    assert not observed((0, first), (60, second)).unchanged_for(60, 60)


def test_an_idle_worker_is_not_stalled() -> None:
    idle = of(worker(counters=(7,)))

    assert not observed((0, idle), (600, idle)).unchanged_for(60, 600)


def test_only_the_counters_of_too_many_tasks_are_compared() -> None:
    flooded = [of(worker(pending=None, counters=(count,))) for count in (1, 1, 2)]

    assert observed(*zip((0, 60), flooded[:2], strict=True)).unchanged_for(60, 60)
    assert not observed(*zip((0, 60), flooded[1:], strict=True)).unchanged_for(60, 60)


class Timeline:
    """The trigger with a clock: it gets the unchanged tasks every 30 s; the times of snapshots are recorded."""

    def __init__(self, cost_s: float = 0.1) -> None:
        self.trigger = SnapshotTrigger(STUCK_AFTER_S, SHARE)
        self.cost_s = cost_s
        self.now_s = 0.0
        self.began_at: list[float] = []

    def observe(self, *things: str, times: int = 1, touched: bool = False) -> Timeline:
        unchanged = frozenset(("w", thing) for thing in things)
        for _ in range(times):
            if self.trigger.reason(unchanged, self.now_s, has_progress=touched):
                self.began_at.append(self.now_s)
                self.trigger.note_snapshot(unchanged, self.now_s, self.cost_s)
            self.now_s += 30
        return self


def test_a_progressing_cluster_needs_no_snapshot() -> None:
    assert not Timeline().observe(times=1000).began_at


def test_stable_tasks_trigger_a_snapshot_at_once_and_then_less_often() -> None:
    began_at = Timeline().observe("a", times=400).began_at

    gaps = [after - before for before, after in pairwise(began_at)]
    assert began_at[0] == 0
    assert gaps[0] == FIRST_REPEAT * STUCK_AFTER_S
    assert gaps == sorted(gaps)
    assert gaps[-1] == MAX_GAP_S


def test_a_doubtful_finding_triggers_another_snapshot_soon() -> None:
    trigger, unchanged = SnapshotTrigger(STUCK_AFTER_S, SHARE), frozenset({("w", "a")})
    trigger.note_snapshot(unchanged, 0, 0.0, has_unproven=True)

    assert trigger.reason(unchanged, STUCK_AFTER_S - 1) is None
    assert trigger.reason(unchanged, STUCK_AFTER_S)


def test_new_stable_tasks_trigger_a_snapshot_at_once() -> None:
    assert Timeline().observe("a").observe("a", "b").began_at == [0, 30]


def test_fewer_stable_tasks_trigger_no_snapshot() -> None:
    assert Timeline().observe("a", "b", "c").observe("a", "b").observe("a").began_at == [0]


def test_tasks_that_changed_and_are_stable_again_are_new() -> None:
    assert Timeline().observe("a").observe().observe("a").began_at == [0, 60]


def test_a_changed_member_of_a_finding_triggers_a_snapshot_at_once() -> None:
    assert Timeline().observe("a").observe("a", touched=True).began_at == [0, 30]


def test_a_failed_snapshot_is_retried_less_and_less_often() -> None:
    trigger, unchanged = SnapshotTrigger(STUCK_AFTER_S, SHARE), frozenset({("w", "a")})
    now_s, waits = 0.0, []
    for _ in range(40):
        trigger.note_failure(now_s)
        waits.append(next(wait for wait in range(1, 10_000) if trigger.reason(unchanged, now_s + wait)))
        now_s += waits[-1]

    assert waits[:3] == [60, 120, 240]
    assert waits[-1] == MAX_GAP_S
    trigger.note_snapshot(unchanged, now_s, 0.0)
    trigger.note_failure(now_s)
    assert trigger.reason(frozenset({("w", "b")}), now_s + STUCK_AFTER_S)


def test_other_costs_delay_the_next_snapshot() -> None:
    trigger, unchanged = SnapshotTrigger(STUCK_AFTER_S, 0.1), frozenset({("w", "a")})
    trigger.note_snapshot(frozenset(), 0.0, 1.0)
    trigger.note_cost(0.0, 2.0)

    assert trigger.reason(unchanged, 29.0) is None
    assert trigger.reason(unchanged, 31.0)


def test_the_reason_is_a_phrase() -> None:
    trigger = SnapshotTrigger(STUCK_AFTER_S, SHARE)
    one = {("driver", (1,))}
    more = one | {("driver", "t", "SUBMITTED_TO_WORKER"), ("w", "t"), ("w", "u"), ("w", (2,))}

    assert trigger.reason(frozenset(one), 0) == "no progress for 60 s: 1 driver or busy worker"
    assert trigger.reason(frozenset(more), 0) == "no progress for 60 s: 2 calls and 2 drivers or busy workers"
    trigger.note_snapshot(frozenset({("w", "t")}), 0, 0.0)
    assert trigger.reason(frozenset({("w", "t")}), 300) == ("still no progress, 300 s after the last snapshot: 1 call")


@given(
    unchanged_sets=st.lists(st.frozensets(st.sampled_from("abcdef")), max_size=200),
    cost_s=st.floats(min_value=0, max_value=10),
)
def test_snapshots_take_at_most_their_share_of_time_and_miss_nothing(
    unchanged_sets: list[frozenset[str]], cost_s: float
) -> None:
    timeline = Timeline(cost_s)
    new_since: dict[str, float] = {}
    for unchanged in unchanged_sets:
        at_s, before = timeline.now_s, len(timeline.began_at)
        timeline.observe(*unchanged)
        new_since = {thing: new_since.get(thing, at_s) for thing in unchanged}
        if len(timeline.began_at) > before:
            new_since |= dict.fromkeys(unchanged, float("inf"))
        assert all(at_s - since <= cost_s / SHARE for since in new_since.values())
    gaps = [after - before for before, after in pairwise(timeline.began_at)]
    assert all(cost_s <= SHARE * gap * 1.000001 for gap in gaps)


def test_a_prediction_gets_a_snapshot_if_the_last_one_is_old_and_its_cost_is_paid() -> None:
    trigger = SnapshotTrigger(STUCK_AFTER_S, SHARE)
    assert trigger.may_predict(0.0)

    trigger.note_snapshot(frozenset(), 0.0, cost_s=0.1)
    assert [at for at in range(0, 100, 10) if trigger.may_predict(at)] == [60, 70, 80, 90]

    trigger.note_snapshot(frozenset(), 100.0, cost_s=0.9)
    assert not trigger.may_predict(180.0)
    assert trigger.may_predict(190.0)
