"""The index of a history: states, callers, and times by one clock."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dstack.analysis.history.task_index import HistoryIndex
from dstack.analysis.index.sample_index import SampleIndex
from dstack.model.snapshot import Actor, Job, Node, Sample, Snapshot, TaskAttempt, TaskHistory

NOW = 1.7e9
JOB, DRIVER = "01000000", "f" * 40 + "01000000"
HEAD, OTHER = Node(node_id="aa" * 28, ip="10.0.0.1"), Node(node_id="bb" * 28, ip="10.0.0.2")


def task_id(letter: str) -> str:
    return letter * 16 + "f" * 24 + JOB


def attempt(letter: str, number: int = 0, *, caller: str = DRIVER, node: Node = HEAD, **states: float) -> TaskAttempt:
    return with_states(letter, states, number, caller, node)


def with_states(
    letter: str, states: dict[str, float], number: int = 0, caller: str = DRIVER, node: Node = HEAD
) -> TaskAttempt:
    return TaskAttempt(
        task_id=task_id(letter),
        name=letter,
        kind="NORMAL_TASK",
        job_id=JOB,
        attempt=number,
        parent_task_id=caller,
        node_id=node.node_id,
        states={state: NOW + at for state, at in states.items()},
    )


def index(
    *attempts: TaskAttempt, nodes: tuple[Node, ...] = (HEAD, OTHER), actors: tuple[Actor, ...] = ()
) -> HistoryIndex:
    snapshot = Snapshot(
        dstack_version="0",
        taken_at=NOW,
        address="10.0.0.1:1",
        ray_version="2.60.0",
        nodes=nodes,
        actors=actors,
        jobs=(Job(job_id=JOB, driver_ip=HEAD.ip),),
    )
    return HistoryIndex(
        SampleIndex(snapshot, Sample(began_s=0.0, ended_s=0.0)), TaskHistory(asked_at=NOW + 50, attempts=attempts)
    )


@pytest.mark.parametrize(
    ("states", "state"),
    [
        ({"PENDING_ARGS_AVAIL": 1}, "pending"),
        ({"PENDING_ARGS_AVAIL": 1, "SUBMITTED_TO_WORKER": 2}, "pending"),
        ({"PENDING_ARGS_AVAIL": 1, "RUNNING": 3}, "running"),
        ({"RUNNING": 3, "FINISHED": 4}, "finished"),
        ({"RUNNING": 3, "FAILED": 4}, "failed"),
        ({"FAILED": 4}, "failed"),
    ],
)
def test_the_state_is_the_last_one_reached(states: dict[str, float], state: str) -> None:
    assert [one.state for one in index(with_states("a", states)).attempts] == [state]


def test_callers_and_calls() -> None:
    outer = attempt("a", PENDING_ARGS_AVAIL=1, RUNNING=2)
    again = attempt("b", 1, caller=outer.task_id, PENDING_ARGS_AVAIL=6)
    first = attempt("b", caller=outer.task_id, PENDING_ARGS_AVAIL=3, FAILED=4)
    found = index(outer, again, first)

    assert [(one.task.name, one.task.attempt) for one in found.attempts] == [("a", 0), ("b", 0), ("b", 1)]
    assert found.latest[task_id("b")].task == again
    assert [caller and caller.task.name for caller in map(found.caller, found.attempts)] == [None, "a", "a"]


def test_times_are_by_the_clock_of_dstack() -> None:
    """The caller reports the submission and the end, the worker that runs it reports the start."""
    ahead = Node(node_id=OTHER.node_id, ip=OTHER.ip, clock_ahead_s=100.0)
    outer = attempt("a", node=ahead, PENDING_ARGS_AVAIL=1, RUNNING=102, FINISHED=9)
    inner = attempt("b", caller=outer.task_id, PENDING_ARGS_AVAIL=103, RUNNING=5, FINISHED=106)

    first, second = index(outer, inner, nodes=(HEAD, ahead)).attempts

    assert [first.submitted_at, first.started_at, first.ended_at] == [NOW + 1, NOW + 2, NOW + 9]
    assert [second.submitted_at, second.started_at, second.ended_at] == [NOW + 3, NOW + 5, NOW + 6]


def test_the_creation_of_an_actor_is_by_the_clock_of_its_node() -> None:
    actor = Actor(actor_id="cc" * 12 + JOB, job_id=JOB, class_name="A", state="ALIVE", node_id=OTHER.node_id)
    ahead = Node(node_id=OTHER.node_id, ip=OTHER.ip, clock_ahead_s=100.0)
    created = replace(attempt("a", PENDING_ARGS_AVAIL=1, RUNNING=102), actor_id=actor.actor_id, node_id=None)

    (found,) = index(created, nodes=(HEAD, ahead), actors=(actor,)).attempts

    assert (found.submitted_at, found.started_at) == (NOW + 1, NOW + 2)


def test_the_queue_of_an_actor_is_known_from_either_state() -> None:
    fetches = attempt("a", PENDING_ACTOR_TASK_ARGS_FETCH=1, PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY=2)
    queued = attempt("b", PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY=2)

    assert [one.arrived_at for one in index(fetches, queued).attempts] == [NOW + 1, NOW + 2]


def test_an_empty_history_has_bounds() -> None:
    found = index()

    assert (found.began_at, found.ended_at, list(found.attempts)) == (NOW + 50, NOW + 50, [])
