"""Task time against brute force, moment by moment: own times, widths, intervals, retries and what never ended."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dstack.analysis.history.task_time import (
    DEEPER,
    MAX_DEPTH,
    NO_CALLER,
    Interval,
    Runs,
    Span,
    Spans,
    TaskNames,
    TaskTime,
    microseconds,
    runs_of,
)
from dstack.analysis.stacks.weighted_stacks import WeightedStacks
from dstack.model.snapshot import TaskAttempt
from tests.unit.analysis.history.histories import BEGAN_AT, attempt, history_of

spans = st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda drawn: (drawn[0], drawn[0] + drawn[1]))
many = st.lists(spans, max_size=25)


def moments(*parts: Span) -> set[int]:
    return {moment for begin, end in parts for moment in range(begin, end)}


def union_of(parts: list[Span]) -> Spans:
    made = Spans()
    for one in parts:
        made.add(one)
    return made


def require_sound(union: Spans) -> None:
    found = list(union)
    assert found == sorted(found)
    assert all(end < begin for (_, end), (begin, _) in pairwise(found)), "touching spans are one"


@given(many, spans)
def test_added_spans_and_their_gaps(parts: list[Span], span: Span) -> None:
    union = union_of(parts)

    require_sound(union)
    assert moments(*union) == moments(*parts)
    gaps = union.gaps_in(span)
    assert moments(*gaps) == moments(span) - moments(*parts)
    assert all(begin < end for begin, end in gaps)


@given(st.lists(many, max_size=6))
def test_a_union_of_unions(parts: list[list[Span]]) -> None:
    union = Spans.union(map(union_of, parts))

    require_sound(union)
    assert moments(*union) == moments(*(span for part in parts for span in part))


@given(st.lists(spans, min_size=20, max_size=40), spans)
def test_a_few_spans_join_a_large_union(parts: list[Span], span: Span) -> None:
    large = union_of([(10 * begin, 10 * begin + 5) for begin, _ in parts])
    before = list(large)

    union = Spans.union([union_of([span]), large])

    require_sound(union)
    assert moments(*union) == moments(*before, span)


DRIVER = attempt("d", 0, 9, kind="DRIVER_TASK")
STEP = attempt("s", 0, 9, name="Trainer.step", kind="ACTOR_TASK", node_id="n2")
READ = attempt("r", 0, 9, name="ReadParquet->Map(parse)", node_id="gone")


def test_names() -> None:
    names = TaskNames(history_of([DRIVER, STEP, READ]))

    assert [names.step(one).name for one in (DRIVER, STEP, READ)] == [
        "driver train.py",
        "Trainer.step",
        "Data operator ReadParquet->Map(parse)",
    ]
    assert names.step(READ).origin == "ray"
    assert names.step(attempt("x", 0, 1, name=" ")).name == " "


def test_groups_of_attempts() -> None:
    names = TaskNames(history_of([DRIVER, STEP, READ]))

    assert [names.groups(one, "node") for one in (STEP, READ)] == [("node 10.0.0.2",), ("node unknown",)]
    assert [names.groups(one, "kind") for one in (DRIVER, STEP, READ)] == [("drivers",), ("actor Trainer",), ("tasks",)]
    assert names.groups(STEP, "job") == ("job 01000000 train.py",)
    assert names.groups(STEP, None) == ()


ASKED_S = 20
Names = tuple[str, ...]


@st.composite
def attempts(draw: st.DrawFn) -> list[TaskAttempt]:
    """Up to 8 tasks of up to 3 attempts in turn; callers may end before their callees, or be unknown."""
    made: list[TaskAttempt] = []
    for task in draw(st.permutations(range(draw(st.integers(0, 8))))):
        name, caller, at = draw(st.sampled_from("fg")), draw(st.integers(-2, task - 1)), draw(st.integers(0, ASKED_S))
        for number in range(draw(st.integers(1, 3))):
            length = draw(st.one_of(st.none(), st.integers(0, 8)))
            ended = None if length is None else at + length
            made.append(attempt(f"t{task}", at, ended, name=name, by=f"t{caller}", number=number))
            at += draw(st.integers(length or 0, 10))
        if draw(st.booleans()):
            made.append(attempt(f"t{task}", None, None, name=name, by=f"t{caller}", number=9))
    return made


def by_names(stacks: WeightedStacks) -> dict[Names, int]:
    """Microseconds by the names of the groups and calls."""
    return {(*one.groups, *(step.name for step in one.frames)): one.weight for one in stacks.stacks}


def seconds(first: int, last: int) -> Interval:
    return Interval(microseconds(BEGAN_AT + first), microseconds(BEGAN_AT + last))


def brute_force(all_attempts: list[TaskAttempt], first: int, last: int) -> dict[Names, int]:
    """The own times by a walk over each second; the test's times are whole seconds."""
    tasks: dict[str, list[TaskAttempt]] = {}
    for one in all_attempts:
        tasks.setdefault(one.task_id, []).append(one)
    own: Counter[Names] = Counter()
    for at in range(first, last):
        running = {task: sum(_runs(*pair, at) for pair in pairs(made)) for task, made in tasks.items()}
        busy = {above for task, count in running.items() if count for above in _chain(task, tasks)[1:]}
        for task, count in running.items():
            if count and task not in busy:
                names = (NO_CALLER.name, *(tasks[each][0].name for each in reversed(_chain(task, tasks))))
                own[names] += count * 1_000_000
    return dict(own)


def pairs(made: list[TaskAttempt]) -> list[tuple[TaskAttempt, TaskAttempt | None]]:
    return list(zip(made, [*made[1:], None], strict=True))


def _chain(task: str, tasks: dict[str, list[TaskAttempt]]) -> list[str]:
    chain = [task]
    while (caller := tasks[chain[-1]][0].parent_task_id) in tasks:
        chain.append(caller)
    return chain


def _runs(one: TaskAttempt, following: TaskAttempt | None, at: int) -> bool:
    began = one.states.get("RUNNING")
    missing = min(following.states.values()) - BEGAN_AT if following else ASKED_S
    ended = one.states["FINISHED"] - BEGAN_AT if "FINISHED" in one.states else missing
    return began is not None and began - BEGAN_AT <= at < ended


@given(attempts(), st.integers(0, ASKED_S), st.integers(0, ASKED_S))
def test_own_times_are_those_of_a_walk_over_each_moment(drawn: list[TaskAttempt], one: int, other: int) -> None:
    first, last = sorted((one, other))

    stacks = TaskTime(history_of(drawn, ASKED_S)).stacks(seconds(first, last))

    assert by_names(stacks) == brute_force(drawn, first, last)


@given(attempts(), st.lists(st.integers(0, 40), min_size=3, max_size=3))
def test_adjoining_intervals_add_up(drawn: list[TaskAttempt], moments: list[int]) -> None:
    first, middle, last = sorted(moments)
    time = TaskTime(history_of(drawn, ASKED_S))

    parts = Counter(by_names(time.stacks(seconds(first, middle))))
    parts.update(by_names(time.stacks(seconds(middle, last))))

    assert parts == by_names(time.stacks(seconds(first, last)))


@given(attempts())
def test_a_call_is_no_narrower_than_its_attempts_ran(drawn: list[TaskAttempt]) -> None:
    time = TaskTime(history_of(drawn, ASKED_S))
    stacks, runs = time.stacks(), time.runs()

    for path, found in runs.items():
        below = sum(one.weight for one in stacks.stacks if one.frames[: len(path)] == path)
        assert below >= found.run_us
    assert sum(one.attempts for one in runs.values()) == sum("RUNNING" in one.states for one in drawn)


def test_a_caller_that_waits_adds_nothing_and_parallel_children_make_it_wider() -> None:
    time = TaskTime(
        history_of(
            [
                attempt("d", 0, 10, kind="DRIVER_TASK"),
                attempt("a", 1, 9, name="load", by="d"),
                attempt("b", 2, 6, name="read", by="a"),
                attempt("c", 2, 6, name="read", by="a"),
            ]
        )
    )

    assert by_names(time.stacks()) == {
        ("driver train.py",): 2_000_000,
        ("driver train.py", "load"): 4_000_000,
        ("driver train.py", "load", "read"): 8_000_000,
    }
    runs = {tuple(step.name for step in path): found for path, found in time.runs().items()}
    assert runs["driver train.py", "load"] == Runs(attempts=1, run_us=8_000_000)
    assert runs["driver train.py", "load", "read"] == Runs(attempts=2, run_us=8_000_000)


def test_retries_and_attempts_that_have_not_ended() -> None:
    time = TaskTime(
        history_of(
            [
                attempt("a", 0, 3, name="flaky", failed=True),
                attempt("a", 4, None, name="flaky", number=1),
                attempt("b", 1, 2, name="part", by="a"),
                attempt("c", None, None, name="pending", by="a"),
                attempt("e", None, 5, name="lost"),
            ],
            asked_s=10,
        )
    )

    assert by_names(time.stacks()) == {
        (NO_CALLER.name, "flaky"): 8_000_000,
        (NO_CALLER.name, "flaky", "part"): 1_000_000,
    }
    assert runs_of(time.runs(), time.runs()) == Runs(attempts=3, run_us=10_000_000, failed=1, running=1)
    assert time.without_times == 1
    assert time.whole == seconds(0, 10)


def test_groups() -> None:
    time = TaskTime(
        history_of(
            [
                attempt("d", 0, 4, kind="DRIVER_TASK"),
                attempt("a", 1, 2, name="Trainer.step", by="d", kind="ACTOR_TASK", node_id="n2"),
                attempt("b", 3, 4, name="load", by="d"),
            ]
        )
    )

    def groups(by: str) -> dict[str, int]:
        stacks = time.stacks(by=by)  # type: ignore[arg-type]
        found: Counter[str] = Counter()
        for one in stacks.stacks:
            found[one.groups[0]] += one.weight // 1_000_000
        return dict(found)

    assert groups("node") == {"node 10.0.0.1": 3, "node 10.0.0.2": 1}
    assert groups("kind") == {"actor Trainer": 1, "drivers": 2, "tasks": 1}
    assert groups("job") == {"job 01000000 train.py": 4}


def test_a_chain_of_many_calls_is_cut_and_loses_no_time() -> None:
    """Each task begins the next one and ends: the spans below the first one do not touch."""
    count = 5_000
    drawn = [
        attempt(f"t{number}", 2 * number, 2 * number + 1, name="step", by=f"t{number - 1}") for number in range(count)
    ]

    stacks = TaskTime(history_of(drawn, 3 * count)).stacks()

    assert stacks.weight == count * 1_000_000
    assert max(len(one.frames) for one in stacks.stacks) == MAX_DEPTH + 1
    assert next(one for one in stacks.stacks if DEEPER in one.frames).weight == (count - MAX_DEPTH + 1) * 1_000_000


def test_callers_that_form_a_cycle_lose_no_time() -> None:
    """No cluster reports this, but a file may."""
    drawn = [attempt(f"t{number}", number, number + 1, by=f"t{by}") for number, by in enumerate((1, 2, 3, 1, 4))]

    stacks = TaskTime(history_of(drawn)).stacks()

    assert stacks.weight == 5_000_000
    assert len(stacks.stacks) == 5


def test_an_empty_history() -> None:
    time = TaskTime(history_of([]))

    assert time.stacks().stacks == ()
    assert time.whole.length_us == 0
    assert Interval(5, 8).moved(-1) == Interval(2, 5)


def test_in_the_order_of_time_what_a_caller_calls_stands_as_it_first_ran() -> None:
    time = TaskTime(
        history_of([attempt("a", 4, 18, name="b"), attempt("b", 0, 2, name="c"), attempt("c", 5, 6, name="a")])
    )

    assert [stack.frames[-1].name for stack in time.stacks_in_order().stacks] == ["c", "b", "a"]
    assert sorted(time.stacks_in_order().stacks, key=str) == sorted(time.stacks().stacks, key=str)
