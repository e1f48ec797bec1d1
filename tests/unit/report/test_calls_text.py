"""A call graph as text: what a reader sees at 80 columns."""

from __future__ import annotations

import pytest

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.analysis.views.call_graph import CallGraph
from dstack.files.snapshot_file import load
from dstack.report.calls_text import SHOWN_CALLERS, SHOWN_EDGES, SHOWN_METHODS, brief, call_table, summary
from dstack.words import UNSEEN
from tests.examples.recorded import recorded as recorded_example
from tests.fuzzing.hostile_text import hostile
from tests.paths import RECORDED_CALLS, ROOT
from tests.unit.scenes import Scene
from tests.unit.support.call_histories import attempt, ended, graph_of, with_history


@pytest.fixture(scope="module")
def recorded() -> CallGraph:
    return CallGraph.of(AnalysedSnapshot.of(load(RECORDED_CALLS)))


def rows_of(graph: CallGraph, width: int = 80) -> list[str]:
    return call_table(graph, width).splitlines()


def test_deadlocks_come_first_and_each_caller_has_its_callees_below_it(recorded: CallGraph) -> None:
    rows = rows_of(recorded)
    first = next(number for number, row in enumerate(rows) if row.startswith("caller"))

    assert rows[0] == "121 calls within 14 s: 116 finished, 1 failed, 2 running, 2 pending"
    assert sum("deadlock" in row for row in rows[:first]) == 3
    below = rows[first + 1 :]
    assert below[0].rstrip() == "driver pipeline.py"
    assert below[1].startswith("  → Store ")
    assert "  objects made by ray.put" in "\n".join(below)


@pytest.mark.parametrize("width", [80, 100, 200])
def test_columns_are_aligned_at_each_width(recorded: CallGraph, width: int) -> None:
    rows = rows_of(recorded, width)
    (head,) = (row for row in rows if row.startswith("caller"))
    ends = {title: head.rindex(title) + len(title) for title in ("calls", "fail", "max")}
    (store,) = (row for row in rows if row.startswith("  → Store "))
    (prepare,) = (row for row in rows if row.startswith("  → prepare"))

    assert store[: ends["calls"]].endswith(" 61")
    assert prepare[: ends["fail"]].endswith(" 1")
    assert store[: ends["max"]].endswith(" ms")
    assert max(map(len, rows[6:-3])) <= width


def test_the_page_on_commands_shows_this_table(recorded: CallGraph) -> None:
    block = "\n".join(f"    {row}".rstrip() for row in rows_of(recorded))

    assert f"\n\n{block}\n\n" in (ROOT / "docs" / "commands.md").read_text()


def test_frequent_and_running_calls_are_marked_and_the_marks_explained(recorded: CallGraph) -> None:
    text = call_table(recorded, 80)

    assert "44!" in text
    assert "!: a high rate of calls, as of a loop that polls." in text
    assert "≥ 5.0 s" in text
    assert "≥: this call still runs." in text


def test_what_is_left_out_is_counted() -> None:
    scene = Scene()
    driver, actor = scene.driver(), scene.actor("Many")
    functions = [ended(scene, scene.task(f"f{number:03}", by=driver)) for number in range(SHOWN_CALLERS + 5)]
    nested = [ended(scene, scene.task("leaf", by=driver)) for _ in functions]
    methods = [ended(scene, scene.call(actor, f"m{number}", by=driver)) for number in range(SHOWN_METHODS + 2)]
    attempts = [attempt(call, driver) for call in (*functions, *methods)]
    attempts += [attempt(call, parent) for call, parent in zip(nested, functions, strict=True)]
    text = call_table(graph_of(with_history(scene, attempts, left_out=7, dropped=1)), 80)

    assert f"  and {len(functions) + 1 - SHOWN_EDGES} more" in text
    assert "      and 2 more" in text
    assert "and 6 more callers: --format json has all" in text
    assert "7 older calls of the history were not read." in text
    assert "Ray has dropped the events of 1 call." in text


def test_a_wait_for_itself_says_for_what_of_its_own() -> None:
    scene = Scene()
    driver, left, peers = scene.driver(), scene.actor("Left"), [scene.actor("Peer") for _ in range(2)]
    ping = scene.call(left, "ping", by=driver)
    back = scene.call(left, "back", by=left)
    asked = [scene.call(peer, "ask", by=driver) for peer in peers]
    left.runs(ping).gets(back)
    peers[0].runs(asked[0]).gets(asked[1])
    peers[1].runs(asked[1])
    text = call_table(graph_of(scene))

    assert "Left: 1 call waits in ray.get for calls and 1 call waits for a slot of their own actor" in text
    assert "Peer (2 actors): 1 call waits in ray.get for calls of its own class" in text


def test_a_wait_for_child_processes_or_for_sockets_of_others_is_for_no_calls_of_its_own() -> None:
    fork, socket = (
        call_table(CallGraph.of(AnalysedSnapshot.of(load(recorded_example(f"hangs/{name}")))))
        for name in ("lock_held_at_fork", "message_queue_lost_message")
    )

    assert "1 call waits in multiprocessing.Process.join for child processes of its own actor, never proceeds" in fork
    assert "Engine of job 03000000 waits for driver message_queue_lost_message.py" in socket
    assert "its own" not in socket


def test_a_retry_and_an_unknown_caller_are_said() -> None:
    scene = Scene()
    scene.driver()
    call = ended(scene, scene.task("prepare", by=scene.procs[0]))
    attempts = [attempt(call, None, started=-5, failed=-4), attempt(call, None, attempt=1)]
    graph = graph_of(with_history(scene, attempts))

    assert summary(graph) == "2 calls within 10 s, of 1 task, retried once: 1 failed, 1 pending"
    assert "unknown caller: Ray does not keep the task that made these calls, or a thread has made them." in call_table(
        graph
    )


def test_an_empty_graph_has_a_sentence() -> None:
    text = call_table(graph_of(Scene()))

    assert text.splitlines()[0] == "0 calls"
    assert "This snapshot has no history: only calls that have not ended are known." in text


def test_hostile_text_is_visible() -> None:
    text = call_table(CallGraph.of(AnalysedSnapshot.of(hostile(load(RECORDED_CALLS)))))

    assert not UNSEEN.search(text.replace("\n", ""))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (0.0004, "0.4 ms"),
        (0.34, "340 ms"),
        (12.0, "12 s"),
        (61.0, "61 s"),
        (200.0, "3 min"),
        (9000.0, "2.5 h"),
    ],
)
def test_durations_in_columns_are_brief(seconds: float, text: str) -> None:
    assert brief(seconds) == text
