"""The trace is well formed: as the format's specification and its two viewers require."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dstack.analysis.history.task_index import HistoryIndex
from dstack.analysis.views.timeline import Timeline
from dstack.model.diagnosis import Vertex, Wait
from dstack.model.vertex_facts import subject
from dstack.model.vertex_keys import TaskKey
from dstack.report.chrome_trace import FAILED, chrome_trace
from tests.perfetto.trace_processor import trace_processor
from tests.unit.analysis.history.test_marked_spans import finished, history_of, process, ran
from tests.unit.support.histories import ACTOR, DRIVER, attempt, driver_attempt, index, pipeline, task_id

Events = list[dict[str, Any]]


def events_of(timeline: Timeline) -> Events:
    document = msgspec.json.decode(chrome_trace(timeline))
    found: Events = document["traceEvents"]
    return found


def of(events: Events, *kinds: str) -> Events:
    return [event for event in events if event["ph"] in kinds]


def names(events: Events, what: str) -> list[str]:
    return [event["args"]["name"] for event in events if event["name"] == what]


def assert_well_formed(events: Events) -> None:
    """Everything has its place and time; slices of a thread do not overlap; pairs are complete; arrows hit slices."""
    threads = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    processes = {event["pid"] for event in events if event["name"] == "process_name"}
    for event in events:
        assert event["pid"] in processes
        if event["ph"] == "M":
            continue
        assert (event["pid"], event["tid"]) in threads
        assert isinstance(event["ts"], int)
        assert event["ts"] >= 0
        assert event["name"]
    slices = slices_by_thread(events)
    for found in slices.values():
        assert all(before["ts"] + before["dur"] <= after["ts"] for before, after in pairwise(found))
    assert_pairs(of(events, "b", "e"))
    assert_arrows(of(events, "s", "f"), slices)


def slices_by_thread(events: Events) -> dict[tuple[int, int], Events]:
    found: dict[tuple[int, int], Events] = defaultdict(list)
    for event in of(events, "X"):
        assert event["dur"] >= 0
        found[event["pid"], event["tid"]].append(event)
    for one in found.values():
        one.sort(key=lambda event: (event["ts"], event["ts"] + event["dur"]))
    return found


def assert_pairs(events: Events) -> None:
    """Each end belongs to the last open beginning of its id, of the same name; all are ended."""
    is_open: dict[str, Events] = defaultdict(list)
    for event in events:
        if event["ph"] == "b":
            if is_open[event["id"]]:
                assert is_open[event["id"]][-1]["ts"] <= event["ts"]
            is_open[event["id"]].append(event)
        else:
            begin = is_open[event["id"]].pop()
            assert (begin["name"], begin["cat"], begin["pid"]) == (event["name"], event["cat"], event["pid"])
            assert begin["ts"] <= event["ts"]
    assert not any(is_open.values())


def assert_arrows(events: Events, slices: dict[tuple[int, int], Events]) -> None:
    by_id: dict[str, Events] = defaultdict(list)
    for event in events:
        by_id[event["id"]].append(event)
        at = slices[event["pid"], event["tid"]]
        assert any(one["ts"] <= event["ts"] <= one["ts"] + one["dur"] for one in at)
    assert all([event["ph"] for event in pair] == ["s", "f"] for pair in by_id.values())
    assert all(event["bp"] == "e" for event in events if event["ph"] == "f")


def test_a_small_program() -> None:
    outer = attempt(1, "outer", submitted=1, ready=1, sent=2, started=3, ended=9, worker=1)
    inner = attempt(
        2, "A.f", submitted=4, ready=5, sent=6, started=7, ended=8, failed=True, worker=2, parent=task_id(1),
        kind="ACTOR_TASK", actor_id=ACTOR,
    )  # fmt: skip
    never = attempt(3, "never", submitted=2, ready=2)
    waits = Vertex(
        key=TaskKey(task_id(3)),
        kind="task",
        subject=subject("named", "never"),
        task_id=task_id(3),
        wait=Wait(kind="lock", groups=()),
    )
    history = index(driver_attempt(), outer, inner, never, asked=20.0)

    events = events_of(Timeline(history, {waits.key: waits}))

    assert_well_formed(events)
    assert names(events, "process_name") == ["node 10.0.0.1", "not started"]
    assert names(events, "thread_name") == [
        "driver train.py",
        "worker, pid 1",
        "actor A cccccccc, pid 2",
        "never",
    ]
    running = {event["name"]: event for event in of(events, "X")}
    assert [(name, one["ts"], one["dur"]) for name, one in running.items()] == [
        ("driver", 0, 20_000_000),
        ("outer", 3_000_000, 6_000_000),
        ("A.f", 7_000_000, 1_000_000),
    ]
    assert running["A.f"]["args"]["error"] == "ValueError: no"
    assert running["A.f"]["cname"] == FAILED
    assert running["driver"]["args"]["had_not_ended"] is True
    begun = [(event["name"], event["ts"]) for event in of(events, "b")]
    assert begun == [
        ("outer", 2_000_000 - 1_000_000),
        ("waits for resources", 1_000_000),
        ("waits for its worker", 2_000_000),
        ("A.f", 4_000_000),
        ("waits for arguments", 4_000_000),
        ("waits for resources", 5_000_000),
        ("waits for its actor", 6_000_000),
        ("never", 2_000_000),
        ("waits for resources", 2_000_000),
    ]
    assert [(one["ph"], one["ts"]) for one in of(events, "s", "f")] == [
        ("s", 1_000_000),
        ("f", 3_000_000),
        ("s", 4_000_000),
        ("f", 7_000_000),
    ]
    (mark,) = of(events, "i")
    assert (mark["s"], mark["ts"], mark["name"]) == ("t", 20_000_000, "never waits for a lock, held by ")


def test_the_steps_of_an_item_have_its_chain_and_arrows() -> None:
    runs = [[(item, item + 0.4), (item + 0.5, item + 1.1)] for item in range(1, 6)]

    events = events_of(Timeline(index(driver_attempt(), *pipeline(runs))))

    assert_well_formed(events)
    steps = [event for event in of(events, "X") if event["name"] != "driver"]
    assert sorted(event["args"]["chain"] for event in steps) == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert sum(event["cat"] == "chain" for event in of(events, "s")) == 5
    assert sum(event["cat"] == "call" for event in of(events, "s")) == 10


def test_what_is_missing_is_in_the_trace() -> None:
    document = msgspec.json.decode(chrome_trace(Timeline(index(dropped=7))))

    assert document["traceEvents"] == []
    assert document["otherData"]["attempts_dropped_by_ray"] == 7
    assert document["otherData"]["clocks_agree"] is True


def test_names_drive_no_terminal() -> None:
    (running,) = of(events_of(Timeline(index(attempt(1, "\x1b[31mred", started=1, worker=1)))), "X")

    assert "\x1b" not in running["name"]


TIMES = st.none() | st.integers(0, 30).map(lambda tick: tick / 3e5)


@st.composite
def histories(draw: st.DrawFn) -> HistoryIndex:
    """Attempts at arbitrary times, with gaps, on few workers, of actors and without."""
    found = [driver_attempt()] * draw(st.integers(0, 1))
    for number in range(1, draw(st.integers(1, 20)) + 1):
        submitted, ready, sent, arrived, started, ended = (draw(TIMES) for _ in range(6))
        is_call = draw(st.booleans())
        found.append(
            attempt(
                number,
                draw(st.sampled_from(["a", "A.f"])),
                submitted=submitted if started is not None or ended is not None else 0.0,
                ready=ready,
                sent=sent,
                arrived=arrived,
                started=started,
                ended=ended,
                failed=draw(st.booleans()),
                worker=draw(st.none() | st.integers(1, 3)),
                kind="ACTOR_TASK" if is_call else "NORMAL_TASK",
                actor_id=ACTOR if is_call else None,
                parent=draw(st.sampled_from([DRIVER, *(task_id(n) for n in range(1, number + 2))])),
            )
        )
    return index(*found, asked=0.0001)


@given(histories())
def test_any_history_gives_a_well_formed_trace(history: HistoryIndex) -> None:
    assert_well_formed(events_of(Timeline(history)))


def test_perfetto_reads_it() -> None:
    outer = attempt(1, "outer", submitted=1, ready=1, sent=2, started=3, ended=9, worker=1)
    inner = attempt(2, "inner", submitted=4, ready=5, sent=6, started=7, worker=2, parent=task_id(1))
    never = attempt(3, "never", submitted=2, ready=2)

    with trace_processor() as processor:
        processor.load(chrome_trace(Timeline(index(driver_attempt(), outer, inner, never, asked=20.0))))

        wrong = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"
        assert processor.query(wrong) == []
        assert [row["name"] for row in processor.query("select name from process where pid > 0 order by pid")] == [
            "node 10.0.0.1",
            "not started",
        ]
        slices = "select s.name as name, t.name as thread, s.ts as ts, s.dur as dur from slice s"
        running = processor.query(
            f"{slices} join thread_track on track_id = thread_track.id join thread t using (utid)"
        )
        assert [tuple(row.values()) for row in running] == [
            ("driver", "driver train.py", 0, 20_000_000_000),
            ("outer", "worker, pid 1", 3_000_000_000, 6_000_000_000),
            ("inner", "worker, pid 2", 7_000_000_000, 13_000_000_000),
        ]
        arrows = "select a.name as start, b.name as end from flow join slice a on slice_out = a.id join slice b"
        assert processor.query(f"{arrows} on slice_in = b.id order by b.ts") == [
            {"start": "driver", "end": "outer"},
            {"start": "outer", "end": "inner"},
        ]
        waits = processor.query("select name, depth, dur from slice where category = 'waiting' order by ts, depth")
        assert [row["name"] for row in waits if row["depth"] == 0] == ["outer", "never", "inner"]
        assert sum(row["dur"] for row in waits if row["depth"] == 0) == sum(
            row["dur"] for row in waits if row["depth"] == 1
        )


def test_spans_are_inside_what_runs() -> None:
    spans = [finished("load", 1, 2), finished("read", 1, 1.5), finished("across", 1.2, 3), finished("train", 3, 4)]

    events = events_of(Timeline(history_of([ran("x", 0, 5)], process(9, spans))))

    (task,) = [event for event in of(events, "X") if event["cat"] == "running"]
    found = [event for event in of(events, "X") if event["cat"] == "span"]
    assert [(one["name"], one["ts"] - task["ts"], one["dur"]) for one in found] == [
        ("load", 1_000_000, 1_000_000),
        ("read", 1_000_000, 500_000),
        ("train", 3_000_000, 1_000_000),
    ]
    assert {(one["pid"], one["tid"]) for one in (*found, task)} == {(task["pid"], task["tid"])}
