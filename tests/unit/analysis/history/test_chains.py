"""Links between attempts, and the chains that they form."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dstack.analysis.history.chains import WINDOW_S, Chains, Pipeline, usual_maximum
from dstack.analysis.history.slices import running_slice
from dstack.analysis.history.task_index import HistoryIndex
from dstack.analysis.views.timeline import Timeline
from dstack.model.snapshot import TaskAttempt
from dstack.observed.node import Ref, Task
from tests.unit.support.histories import (
    ACTOR,
    DRIVER,
    JOB,
    attempt,
    driver_attempt,
    index,
    named,
    pipeline,
    task_id,
    worker_id,
)

ITEMS = [[(item, item + 0.4), (item + 0.5, item + 1.1), (item + 1.2, item + 1.3)] for item in range(1, 6)]


def chains_of(*attempts: TaskAttempt, history: HistoryIndex | None = None) -> Chains:
    history = history or index(*attempts)
    return Chains(history, history.attempts)


def links_of(chains: Chains) -> list[tuple[str, str, str]]:
    return [(link.maker.task.task_id, link.user.task.task_id, link.basis) for link in chains.links.links]


def test_items_of_a_pipeline() -> None:
    found = chains_of(driver_attempt(), *pipeline(ITEMS))

    assert [named(chain.attempts) for chain in found.chains] == [["step_0", "step_1", "step_2"]] * 5
    assert {link.basis for chain in found.chains for link in chain.links} == {"time"}
    assert [chain.number for chain in found.chains] == [1, 2, 3, 4, 5]
    for chain in found.chains:
        assert len({int(one.task.task_id[:16], 16) // 3 for one in chain.attempts[:2]}) == 1
        assert found.chain_of(chain.attempts[1]) is chain
    assert (found.links.unclear, found.links.unexplained) == (0, 0)


def test_of_two_tasks_that_end_together_the_usual_function_made_the_argument() -> None:
    other = attempt(99, "other", submitted=0.0, ready=0.0001, started=1, ended=1.4 + WINDOW_S / 4, worker=9)
    first, *rest = pipeline(ITEMS, late_s=WINDOW_S / 2)

    found = chains_of(driver_attempt(), other, first, *rest)

    assert found.links.unclear == 0
    assert (task_id(1), task_id(2), "time") in links_of(found)


def test_another_function_that_ended_by_coincidence_made_nothing() -> None:
    """The call of the usual function ended too long before, as on a busy host."""
    late = 6.5 + 3 * WINDOW_S
    maker = attempt(90, "step_0", submitted=0.0, ready=0.0001, started=6, ended=6.5, worker=9)
    user = attempt(91, "step_1", submitted=0.0, ready=late, started=7, ended=7.1, worker=9)
    other = attempt(92, "other", submitted=0.0, ready=0.0001, started=6, ended=late - WINDOW_S / 2, worker=8)

    found = chains_of(driver_attempt(), *pipeline(ITEMS), maker, user, other)

    assert task_id(91) not in {link[1] for link in links_of(found)}
    assert found.links.unclear == 1


def test_of_two_calls_that_end_together_the_one_that_is_not_taken() -> None:
    """The first item's end is before the beginning of both followers; the second one's is after the first follower."""
    together = [[(6, 7.0), (8, 8.1), (8.2, 8.3)], [(6, 7.0 + WINDOW_S / 2), (9, 9.1), (9.2, 9.3)]]

    found = chains_of(driver_attempt(), *pipeline([*ITEMS, *together], late_s=WINDOW_S / 10))

    assert [len(chain.attempts) for chain in found.chains] == [3] * 7


def test_calls_that_end_at_the_same_time_are_unclear() -> None:
    found = chains_of(driver_attempt(), *pipeline([[(1, 2.0), (3, 3.1)], [(1, 2.0), (4, 4.1)]]))

    assert (list(found.chains), found.links.unclear) == ([], 2)


def test_a_task_that_did_not_wait_is_no_user() -> None:
    maker = attempt(1, "a", submitted=0, ready=0.0001, started=1, ended=2, worker=1)
    user = attempt(2, "b", submitted=2.0001, ready=2.0002, started=3, ended=4, worker=1)

    assert list(chains_of(driver_attempt(), maker, user).chains) == []


def test_a_task_that_was_submitted_later_is_no_maker() -> None:
    user = attempt(1, "b", submitted=0, ready=2.0001, started=3, ended=4, worker=1)
    later = attempt(2, "a", submitted=1, ready=1.0001, started=1, ended=2, worker=1)

    assert list(chains_of(driver_attempt(), user, later).chains) == []


def test_a_function_whose_arguments_come_from_elsewhere_has_no_links() -> None:
    """Two of five waits have a candidate, by coincidence."""
    users = [attempt(n, "b", submitted=0, ready=n, started=n + 0.5, ended=n + 0.6, worker=1) for n in range(1, 6)]
    others = [attempt(10 + n, "x", submitted=0, ready=0, started=0, ended=n - 0.001, worker=2) for n in (1, 3)]

    assert links_of(chains_of(driver_attempt(), *users, *others)) == []


def test_tasks_of_different_owners_are_not_linked() -> None:
    outer = attempt(1, "outer", submitted=0, ready=0, started=0, worker=3)
    maker = attempt(2, "a", submitted=0.1, ready=0.1, started=1, ended=2, worker=1, parent=task_id(1))
    user = attempt(3, "b", submitted=0.1, ready=2.0001, started=3, ended=4, worker=1)

    assert links_of(chains_of(driver_attempt(), outer, maker, user)) == [(task_id(1), task_id(2), "parent")]


def test_a_result_that_many_calls_of_a_function_take_begins_several_chains() -> None:
    shared = attempt(1, "load", submitted=0, ready=0, started=0, ended=1, worker=1)
    users = [attempt(n, "b", submitted=0, ready=1.0001, started=n, ended=n + 0.5, worker=2) for n in range(2, 6)]

    assert list(chains_of(driver_attempt(), shared, *users).chains) == []


def test_a_task_that_submits_one_call_of_each_function_is_a_step() -> None:
    item = attempt(1, "item", submitted=0, ready=0, started=0, worker=3)
    calls = [
        attempt(n, name, submitted=n, ready=n, started=n, worker=n, parent=task_id(1))
        for n, name in ((4, "a"), (5, "b"))
    ]
    loop = [attempt(n, "item", submitted=0, ready=0, started=0, worker=n, parent=task_id(9)) for n in (6, 7)]
    main = attempt(9, "main", submitted=0, ready=0, started=0, worker=9)

    found = chains_of(driver_attempt(), item, *calls, main, *loop)

    assert [named(chain.attempts) for chain in found.chains] == [["item", "a", "b"]]


def test_the_next_attempt_belongs_to_the_chain_of_the_first() -> None:
    first = attempt(1, "a", submitted=0, ready=0, started=1, ended=2, failed=True, worker=1)
    second = attempt(1, "a", submitted=3, ready=3, started=4, worker=2, retry=1)

    (chain,) = chains_of(driver_attempt(), first, second).chains

    assert [link.basis for link in chain.links] == ["retry"]


def test_the_only_pending_argument_of_the_owner_is_a_reference() -> None:
    maker = attempt(1, "a", submitted=0, ready=0, started=1, worker=1)
    user = attempt(2, "b", submitted=0)
    owner = worker_id(8)
    task = Task(
        task_id=task_id(2), owner_id=owner, name="b", kind="NORMAL_TASK", state="PENDING_ARGS_AVAIL", job_id=JOB
    )
    ref = Ref(ref=f"{task_id(1)}01000000", holder_id=owner, state="SUBMITTED_TO_WORKER", argument_uses=1)
    history = index(driver_attempt(), maker, user, tasks=(task,), refs=(ref,))

    assert links_of(chains_of(history=history)) == [(task_id(1), task_id(2), "reference")]

    other = attempt(3, "a", submitted=0, ready=0, started=1, worker=2)
    two = (ref, Ref(ref=f"{task_id(3)}01000000", holder_id=owner, state="SUBMITTED_TO_WORKER", argument_uses=1))
    assert links_of(chains_of(history=index(driver_attempt(), maker, other, user, tasks=(task,), refs=two))) == []


TIMES = st.integers(0, 40).map(lambda tick: tick * WINDOW_S / 4)


@st.composite
def histories(draw: st.DrawFn) -> HistoryIndex:
    """Attempts at arbitrary times, retried and nested, so that many candidates compete."""
    found = [driver_attempt()]
    for number in range(1, draw(st.integers(1, 25)) + 1):
        submitted, ready, started, ended = sorted(draw(st.tuples(TIMES, TIMES, TIMES, TIMES)))
        parent = draw(st.sampled_from([DRIVER, *(task_id(n) for n in range(1, number + 3))]))
        name = draw(st.sampled_from("abc"))
        for retry in range(draw(st.integers(1, 2))):
            found.append(
                attempt(
                    number, name, submitted=submitted, ready=ready, started=started, ended=ended, worker=number,
                    parent=parent, retry=retry,
                )
            )  # fmt: skip
    return index(*found)


@given(histories())
def test_chains_are_trees_that_share_no_attempt(history: HistoryIndex) -> None:
    found = Chains(history, history.attempts)

    members = [id(one) for chain in found.chains for one in chain.attempts]
    assert len(members) == len(set(members))
    for chain in found.chains:
        assert len(chain.attempts) > 1
        users = [id(link.user) for link in chain.links]
        assert len(users) == len(set(users)) == len(chain.attempts) - 1
        assert {id(link.maker) for link in chain.links} | set(users) == set(map(id, chain.attempts))
        assert all(first.began_at <= second.began_at for first, second in pairwise(chain.attempts))
        assert all(found.chain_of(one) is chain for one in chain.attempts)


def test_calls_of_one_actor_have_one_owner_and_its_constructor_is_no_step() -> None:
    """Calls of a coroutine have the creation of the actor as their parent, those of a method the method's task."""
    creation, method = "f" * 16 + ACTOR, f"{5:016x}{ACTOR}"
    made = attempt(1, "Loop.__init__", submitted=0, started=0, ended=0.1, kind="ACTOR_CREATION_TASK", actor_id=ACTOR)
    made = replace(made, task_id=creation)
    maker = attempt(2, "a", submitted=0.1, ready=0.1, started=1, ended=2, worker=1, parent=method)
    user = attempt(3, "b", submitted=0.1, ready=2.0001, started=3, ended=4, worker=1, parent=creation)

    assert links_of(chains_of(driver_attempt(), made, maker, user)) == [(task_id(2), task_id(3), "time")]


def of_steps(lasting: tuple[float, ...], items: int = 10) -> Pipeline:
    """The pipeline of items that wait for one worker for each step."""
    free = [0.0] * len(lasting)
    runs = []
    for _ in range(items):
        steps, at = [], 0.001
        for step, lasts in enumerate(lasting):
            began = max(free[step], at + 0.01)
            at = free[step] = began + lasts
            steps.append((began, at))
        runs.append(steps)
    (found,) = Timeline(index(driver_attempt(), *pipeline(runs))).pipelines
    return found


@pytest.mark.parametrize(
    ("lasting", "limiting"),
    [((0.1, 1.0, 0.1), "step_1"), ((1.0, 0.1, 0.1), "step_0"), ((0.1, 0.1, 1.0), "step_2"), ((0.5, 0.5), None)],
)
def test_the_busiest_step_limits(lasting: tuple[float, ...], limiting: str | None) -> None:
    found = of_steps(lasting)

    assert (found.limiting.name if found.limiting else None) == limiting
    assert [step.name for step in found.steps] == [f"step_{number}" for number in range(len(lasting))]
    assert len(found.chains) == 10


def test_the_figures_of_a_step() -> None:
    _, step = of_steps((0.1, 1.0), items=4).steps

    assert (step.attempts, step.at_once) == (4, 1)
    assert step.mean_s == pytest.approx(1.0)
    assert step.longest_s == pytest.approx(1.0)
    assert step.mean_wait_s == pytest.approx((0.01 + 0.91 + 1.81 + 2.71) / 4, abs=0.05)
    assert step.longest_wait_s == pytest.approx(2.71, abs=0.1)
    assert step.utilisation == pytest.approx(4.0 / 4.12, abs=0.02)


def test_a_pipeline_that_is_hardly_in_use_is_limited_by_no_step() -> None:
    runs = [[(item * 10, item * 10 + 1), (item * 10 + 2, item * 10 + 2.2)] for item in range(5)]
    (found,) = Timeline(index(driver_attempt(), *pipeline(runs))).pipelines

    assert found.limiting is None


def test_a_moment_of_more_calls_at_once_does_not_count() -> None:
    runs = [[(0.0, 10.0), (20.0, 20.1)], [(9.9, 20.0), (30.0, 30.1)]]
    slices = [
        one
        for attempt in index(*pipeline(runs)).attempts
        if attempt.task.name == "step_0" and (one := running_slice(attempt, 0.0))
    ]

    assert usual_maximum(slices) == 1
    assert usual_maximum([]) == 1


def other_pipeline(items: int) -> list[TaskAttempt]:
    """Items through step_0 and other, long after those of :data:`RUNS`."""
    found: list[TaskAttempt] = []
    for item in range(items):
        at = 100.0 + item
        first = attempt(900 + 2 * item, "step_0", submitted=50, ready=50, started=at, ended=at + 0.2, worker=1)
        found += [first, attempt(901 + 2 * item, "other", submitted=50, ready=at + 0.2001, started=at + 0.3, worker=9)]
    return found


RUNS = [[(item, item + 0.4), (item + 0.5, item + 1.1), (item + 1.2, item + 1.3)] for item in range(1, 6)]


def test_pipelines_are_the_paths_of_items() -> None:
    found = Timeline(index(driver_attempt(), *pipeline(RUNS), *other_pipeline(4), asked=200.0)).pipelines

    assert [([step.name for step in one.steps], len(one.chains), len(one.parts)) for one in found] == [
        (["step_0", "step_1", "step_2"], 5, 0),
        (["step_0", "other"], 4, 0),
    ]


def test_an_item_that_has_not_passed_all_steps_is_a_part() -> None:
    last = pipeline(RUNS)[-1]
    found = Timeline(index(driver_attempt(), *pipeline(RUNS)[:-1])).pipelines

    assert last.name == "step_2"
    assert [(len(one.chains), len(one.parts)) for one in found] == [(4, 1)]
