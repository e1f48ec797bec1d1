"""What processes printed last: which lines stand beside a wait, in which order and words, and where none do."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dstack.analysis.diagnose import diagnose
from dstack.analysis.findings.last_words import SHOWN_LINES
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.model.diagnosis import Finding
from dstack.model.snapshot import TaskTimes
from dstack.observed.node import LogKind, LogLine, LogTail
from dstack.report.text import report_text
from tests.unit.analysis.graph.rank_scenes import gang
from tests.unit.scenes import APP, TAKEN_AT, Scene
from tests.unit.scenes.processes import SceneProcess

EVENT = "threading.Event.wait"
RAISED = "Exception in thread Thread-1 (fetch): ValueError: bad reply"


def stalled(gates: int = 1) -> Scene:
    """A driver that gets from actors that wait for an Event."""
    scene = Scene()
    driver, found = scene.driver(), [scene.actor("Gate") for _ in range(gates)]
    calls = [scene.call(gate, "enter", by=driver) for gate in found]
    for gate, call in zip(found, calls, strict=True):
        gate.runs(call).is_in(EVENT, "0x1")
    driver.gets(*calls)
    return scene.sample().second_sample()


def line(text: str, kind: LogKind = "plain", **known: Any) -> LogLine:
    return LogLine(text=text, kind=kind, **known)


def tail(process: SceneProcess, *lines: LogLine, **known: Any) -> LogTail:
    fields: dict[str, Any] = {
        "path": f"/logs/worker-{process.worker_id}.err",
        "stream": "stderr",
        "written_at": TAKEN_AT - 60.0,
        "worker_id": process.worker_id,
        "pid": process.worker.pid,
    }
    return LogTail(lines=lines, **{**fields, **known})


def finding(scene: Scene, *tails: LogTail) -> Finding:
    return diagnose(replace(scene.snapshot(), log_tails=tails)).findings[0]


def texts(scene: Scene, *tails: LogTail) -> list[str]:
    return [words.text for words in finding(scene, *tails).last_words]


def test_an_exception_that_ended_a_thread_is_in_the_headline_and_is_the_next_thing_to_correct() -> None:
    scene = stalled()
    gate = scene.procs[1]
    own = tail(gate, line(RAISED, "thread exception", file=APP, line=12, at=TAKEN_AT - 75.0))
    analysed = AnalysedSnapshot.of(replace(scene.snapshot(), log_tails=(own,)))

    (found,) = analysed.diagnosis.findings
    (words,) = found.last_words
    report = " ".join(report_text(analysed).split())

    assert found.kind == "stalled"
    assert f"printed “{RAISED}” at " in found.summary
    assert report.count(RAISED) == 1
    assert "Next: Correct the exception at app.py:12: what ended there may have had to end this wait." in report
    assert (words.file, words.line, words.pid) == (APP, 12, gate.worker.pid)


def test_a_line_that_is_cut_in_the_headline_is_shown_below_with_its_place() -> None:
    scene = stalled()
    text = f"{RAISED} {'of the index ' * 6}"
    own = tail(scene.procs[1], line(text, "thread exception", file=APP, line=12))

    report = " ".join(report_text(AnalysedSnapshot.of(replace(scene.snapshot(), log_tails=(own,)))).split())

    assert "…” at " in report.partition(" printed ")[2][:100]
    assert f": {text.strip()} (a thread of it has ended) {APP}:12 " in report


@pytest.mark.parametrize(
    ("shown", "known"),
    [
        (True, line("Connection refused", "refused connection", count=3)),
        (True, line("Connection refused", "refused connection")),
        (False, line("Connection refused", "refused connection", lines_after=4)),
        (True, line("retry", "warning", count=3, lines_after=4)),
        (False, line("retry", "warning", count=2)),
        (False, line("works")),
        (True, line("NCCL WARN", "NCCL", lines_after=400)),
        (False, line("retry", "warning", count=9, at=TAKEN_AT - 90_000.0)),
        (True, line("CUDA error", "CUDA", at=TAKEN_AT - 90_000.0)),
    ],
)
def test_a_line_stands_beside_a_wait_if_it_tells_by_itself_repeats_or_is_the_last(shown: bool, known: LogLine) -> None:
    scene = stalled()

    assert bool(texts(scene, tail(scene.procs[1], known))) == shown


def test_beside_a_deadlock_only_what_tells_by_itself_is_shown() -> None:
    scene = Scene()
    driver, left, right = scene.driver(), scene.actor("Left"), scene.actor("Right")
    ping, pong = scene.call(left, "ping", by=driver), scene.call(right, "pong", by=left)
    left.runs(ping).gets(pong)
    right.runs(pong).gets(ping)
    driver.gets(ping)
    scene.sample().sample()
    refused, raised = line("Connection refused", "refused connection", count=9), line(RAISED, "thread exception")

    assert texts(scene, tail(scene.procs[1], refused, raised)) == [RAISED]


def test_of_a_program_that_works_no_line_is_shown() -> None:
    scene = Scene()
    driver, worker = scene.driver(), scene.actor("Worker")
    call = scene.call(worker, "work", by=driver)
    worker.runs(call).computes()
    driver.gets(call)
    scene.sample().sample()

    assert texts(scene, tail(worker, line(RAISED, "thread exception"), line("retry", "warning", count=99))) == []


def test_a_process_outside_of_the_finding_is_not_named() -> None:
    scene = stalled()
    other = scene.actor("Other")
    scene.sample()

    assert texts(scene, tail(other, line(RAISED, "thread exception"))) == []


def test_no_more_than_a_few_lines_are_shown_and_each_text_once() -> None:
    scene = stalled(gates=4)
    same = [tail(gate, line(RAISED.replace("1", str(at)), "thread exception")) for at, gate in enumerate(scene.procs)]
    mixed = [line(f"{kind} failed", "CUDA") for kind in ("alpha", "beta", "gamma", "delta")]

    (first,) = finding(scene, *same[1:]).last_words

    assert first.others == 3
    assert len(texts(scene, *same, tail(scene.procs[1], *mixed))) == SHOWN_LINES


def test_what_a_driver_printed_for_a_worker_is_shown_once_and_alone_if_the_worker_has_no_log() -> None:
    scene = stalled()
    driver, gate = scene.procs
    copied = tail(driver, line(RAISED, "thread exception", writer="(Gate pid=7)"))

    (own,) = finding(scene, copied, tail(gate, line(RAISED, "thread exception"))).last_words
    (alone,) = finding(scene, copied).last_words

    assert (own.writer, alone.writer) == ("", "(Gate pid=7)")
    assert own.name.startswith("actor Gate ")


def test_the_actor_that_fell_silent_long_before_its_kind_is_named() -> None:
    scene = stalled(gates=4)
    gates = scene.procs[1:]
    tails = [tail(gate, line(f"step {at}"), written_at=TAKEN_AT - 20.0 - at) for at, gate in enumerate(gates)]
    tails[2] = tail(gates[2], line("step 7 begins"), written_at=TAKEN_AT - 90.0)

    (words,) = finding(scene, *tails).last_words

    assert (words.text, words.pid, words.others) == ("step 7 begins", gates[2].worker.pid, 3)
    assert words.silent_before_s == pytest.approx(67.0)
    assert "whose last line was 1 min 7 s before the other 3 of its kind" in report_text(
        AnalysedSnapshot.of(replace(scene.snapshot(), log_tails=tuple(tails)))
    ).replace("\n  ", " ")


def test_processes_that_fell_silent_together_are_not_named() -> None:
    scene = stalled(gates=4)
    tails = [tail(gate, line("step 7"), written_at=TAKEN_AT - 20.0 * at) for at, gate in enumerate(scene.procs[1:])]

    assert finding(scene, *tails).last_words == ()


def test_a_child_process_is_named_with_its_worker() -> None:
    scene = stalled()
    gate = scene.procs[1]

    (words,) = finding(scene, tail(gate, line("NCCL WARN", "NCCL"), pid=gate.worker.pid + 1)).last_words

    assert words.name.startswith(f"child process (pid {gate.worker.pid + 1}) of actor Gate ")


def test_the_rank_that_never_came_is_named_with_what_it_printed() -> None:
    it = gang(4).collect((0, 1, 2))
    it.ranks[3].is_in(EVENT, "0x5")
    it.scene.sample().second_sample()
    lost = tail(it.ranks[3], line("RuntimeError: CUDA error: out of memory", "CUDA"))

    found = finding(it.scene, lost, *(tail(rank, line("step 3")) for rank in it.ranks[:3]))

    assert "rank 3's actor Rank " in found.summary
    assert "printed “RuntimeError: CUDA error: out of memory” at " in found.summary


def test_a_rank_whose_call_has_failed_is_named_with_what_it_printed() -> None:
    it = gang(4).collect((0, 1, 2)).fails(3)
    it.scene.sample().second_sample()

    assert texts(it.scene, tail(it.ranks[3], line("NCCL WARN", "NCCL"))) == ["NCCL WARN"]


def unplaced() -> Scene:
    """A driver that waits for a task that has no worker, though a CPU is free."""
    scene = Scene()
    driver = scene.driver(scene.node(CPU=1.0))
    task = scene.task("score", driver, required_resources={"CPU": 1.0})
    task.becomes(state="PENDING_NODE_ASSIGNMENT")
    driver.gets(task)
    return scene.sample().sample()


def unplaced_for_10_s(*tails: LogTail) -> Finding:
    """The finding about that task with these logs."""
    scene = unplaced()
    (task,) = (task for task in scene.samples[0].tasks if task.name == "score")
    times = {task.task_id: TaskTimes(states={task.state: TAKEN_AT - 10.0}, submitted_at=TAKEN_AT - 10.0)}
    return diagnose(replace(scene.snapshot(), log_tails=tails, task_times=times)).findings[0]


def of_node(scene: Scene, *lines: LogLine, **known: Any) -> LogTail:
    fields: dict[str, Any] = {"path": "/logs/raylet.out", "stream": "raylet", "written_at": TAKEN_AT - 1.0}
    return LogTail(lines=lines, **{**fields, "node_id": scene.nodes[0].node_id, **known})


def test_where_ray_does_not_say_why_the_raylets_last_warning_is_shown() -> None:
    log = of_node(unplaced(), line("first", lines_after=1), line("(raylet) lease refused"))

    (words,) = unplaced_for_10_s(log).last_words

    assert (words.name, words.text) == ("raylet of node 10.0.0.1", "(raylet) lease refused")


def test_what_a_worker_printed_that_died_before_it_connected_comes_first() -> None:
    raylet = of_node(unplaced(), line("lease refused"))
    died = of_node(unplaced(), line("ImportError: no torch", "exception"), stream="stderr", path="/w.err", pid=77)

    (words,) = unplaced_for_10_s(raylet, died).last_words

    assert words.name == "worker process 77 that has ended of node 10.0.0.1"
    assert words.text == "ImportError: no torch"


def test_a_raylets_warning_from_before_the_wait_says_nothing() -> None:
    old = of_node(unplaced(), line("have not registered within the timeout", "worker start", at=TAKEN_AT - 60.0))

    assert unplaced_for_10_s(old).last_words == ()


def test_a_raylets_log_says_nothing_of_a_wait_for_code() -> None:
    scene = stalled()

    assert texts(scene, of_node(scene, line("No space left on device", "disk full"))) == []
