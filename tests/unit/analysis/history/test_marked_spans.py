"""Spans are placed in attempts, and divide their own time, as moment by moment."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dstack.analysis.history.marked_spans import MarkedSpan, MarkedSpans, by_chain
from dstack.analysis.history.task_index import HistoryIndex
from dstack.analysis.history.task_time import TaskTime
from dstack.analysis.index.sample_index import SampleIndex
from dstack.model.snapshot import Sample, Snapshot, TaskAttempt, Worker, WorkerSample
from dstack.observed.processes import FinishedSpan, Process, Span, Thread
from tests.unit.analysis.history.histories import BEGAN_AT, attempt, snapshot_with

WORKER = Worker(worker_id="w", node_id="n2", ip="10.0.0.2", port=1, pid=9, job_id="01000000")
DRIVER = Worker(worker_id="d", node_id="n1", ip="10.0.0.1", port=2, pid=7, job_id="01000000", is_driver=True)
Drawn = tuple[int, int]
drawn_times = st.tuples(st.integers(0, 20), st.integers(0, 8)).map(lambda drawn: (drawn[0], drawn[0] + drawn[1]))


def ran(task_id: str, began_s: float, ended_s: float | None, **others: str) -> TaskAttempt:
    """An attempt that ran in the worker."""
    return replace(attempt(task_id, began_s, ended_s, node_id="n2"), worker_id="w", **others)


def finished(name: str, began_s: float, ended_s: float) -> FinishedSpan:
    return FinishedSpan(name=name, began_at=BEGAN_AT + began_s, ended_at=BEGAN_AT + ended_s)


def process(pid: int, spans: Iterable[FinishedSpan] = (), threads: tuple[Thread, ...] = ()) -> Process:
    return Process(pid=pid, started_at=BEGAN_AT, finished_spans=tuple(spans), threads=threads)


def history_of(
    attempts: Iterable[TaskAttempt], of_worker: Process, of_driver: Process | None = None, ahead_s: float = 0.0
) -> HistoryIndex:
    """The history of a snapshot with these processes; the clock of the worker's node is ahead."""
    plain = snapshot_with(attempts, 50.0)
    samples = (
        WorkerSample(worker_id="w", process=of_worker),
        WorkerSample(worker_id="d", process=of_driver or process(7)),
    )
    nodes = (plain.nodes[0], replace(plain.nodes[1], clock_ahead_s=ahead_s))
    sample = Sample(began_s=0.0, ended_s=0.1, workers=samples)
    snapshot: Snapshot = replace(plain, workers=(WORKER, DRIVER), nodes=nodes, samples=(sample,))
    assert snapshot.history
    return HistoryIndex(SampleIndex(snapshot, sample), snapshot.history)


def names_in(history: HistoryIndex) -> dict[str, list[str]]:
    """The names of the spans of each task."""
    spans = MarkedSpans(history)
    return {one.task.task_id: [span.name for span in spans.of(one)] for one in history.attempts}


def test_a_span_belongs_to_the_attempt_that_ran_meanwhile() -> None:
    spans = [finished("b", 1.5, 2), finished("a", 1, 3), finished("c", 6, 7), finished("between", 4.2, 4.8)]

    assert names_in(history_of([ran("x", 0, 4), ran("y", 5, None)], process(9, spans))) == {"x": ["a", "b"], "y": ["c"]}


def test_a_span_of_one_of_several_attempts_is_left_out() -> None:
    spans = [finished("in both", 2, 3), finished("in one", 5, 6)]

    assert names_in(history_of([ran("x", 0, 4), ran("y", 1, 8)], process(9, spans))) == {"x": [], "y": ["in one"]}


def test_clocks_of_nodes_are_aligned() -> None:
    attempts = [replace(ran("x", 100, None), states={"RUNNING": BEGAN_AT + 101})]
    history = history_of(attempts, process(9, [finished("a", 102, 103)]), ahead_s=60.0)

    (span,) = MarkedSpans(history).of(history.attempts[0])
    assert span == MarkedSpan(BEGAN_AT + 42, BEGAN_AT + 43, "a")


def test_an_open_span_is_that_of_the_task_of_its_thread_or_of_the_driver() -> None:
    def thread(began_s: float, task_id: str | None) -> Thread:
        spans = (Span(name=f"{task_id}", began_at=BEGAN_AT + began_s),)
        return Thread(os_thread_id=1, name="", stack=0, role="task", task_id=task_id, spans=spans)

    driver = attempt("driver", 0, None, kind="DRIVER_TASK")
    attempts = [driver, ran("x", 0, None), ran("y", 0, None)]
    history = history_of(attempts, process(9, threads=(thread(2, "y"),)), process(7, threads=(thread(1, None),)))

    assert names_in(history) == {"driver": ["None"], "x": [], "y": ["y"]}
    (span,) = MarkedSpans(history).of(history.latest["y"])
    assert (span.is_open, span.ended_at) == (True, BEGAN_AT + 50)


def test_an_open_span_is_within_its_attempt() -> None:
    spans = (Span(name="around", began_at=BEGAN_AT + 1), Span(name="later", began_at=BEGAN_AT + 9))
    task = Thread(os_thread_id=1, name="", stack=0, role="task", task_id="x", spans=spans)
    history = history_of([ran("x", 2, 5)], process(9, threads=(task,)))

    (span,) = MarkedSpans(history).of(history.latest["x"])
    assert span == MarkedSpan(BEGAN_AT + 2, BEGAN_AT + 5, "around", is_open=True)


@given(st.lists(drawn_times, max_size=6), st.lists(drawn_times, max_size=6))
def test_placement_equals_a_search_through_all_attempts(runs: list[Drawn], times: list[Drawn]) -> None:
    attempts = [ran(f"{number}", *run) for number, run in enumerate(runs)]
    spans = [finished(f"{number}", *time) for number, time in enumerate(times)]
    expected: dict[str, set[str]] = {one.task_id: set() for one in attempts}
    for number, (begin, end) in enumerate(times):
        around = [one for one, run in enumerate(runs) if run[0] <= begin and end <= run[1]]
        if len(around) == 1:
            expected[f"{around[0]}"].add(f"{number}")

    found = names_in(history_of(attempts, process(9, spans)))
    assert {task_id: set(names) for task_id, names in found.items()} == expected


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), max_size=5), st.lists(drawn_times, max_size=6))
def test_times_are_divided_moment_by_moment(steps: list[Drawn], drawn: list[Drawn]) -> None:
    times, at = [], 0
    for gap, length in steps:
        times.append((at + gap, at + gap + length))
        at += gap + length
    spans = sorted(((*one, f"{number}") for number, one in enumerate(drawn)), key=lambda one: (one[0], -one[1]))

    found = by_chain(times, spans)

    expected = {
        moment: tuple(name for begin, end, name in spans if begin <= moment < end)
        for begin, end in times
        for moment in range(begin, end)
    }
    assert {moment: names for names, parts in found.items() for part in parts for moment in range(*part)} == expected


def test_task_time_has_the_spans_below_their_call() -> None:
    spans = [finished("load", 1, 2), finished("read", 1, 1.5), finished("train", 3, 7)]
    driver = attempt("driver", 0, 10, kind="DRIVER_TASK")
    subtask = attempt("sub", 4, 5, by="x")
    history = history_of([driver, replace(ran("x", 0, 8), parent_task_id="driver"), subtask], process(9, spans))

    stacks = TaskTime(history).stacks()

    assert {"/".join(step.name for step in one.frames): one.weight / 1e6 for one in stacks.stacks} == {
        "driver train.py": 2.0,
        "driver train.py/x": 3.0,
        'driver train.py/x/span "load"': 0.5,
        'driver train.py/x/span "load"/span "read"': 0.5,
        'driver train.py/x/span "train"': 3.0,
        "driver train.py/x/sub": 1.0,
    }
