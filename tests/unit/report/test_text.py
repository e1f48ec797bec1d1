"""The report for people and the JSON for scripts."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given
from rich.cells import cell_len
from rich.console import Console

from dstack.analysis.diagnose import diagnose
from dstack.analysis.naming.sentences import TORN_STACK
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.cli import main
from dstack.files.snapshot_file import save
from dstack.model.snapshot import Snapshot
from dstack.observed.node import Failure
from dstack.report.check_json import MANY, check_json
from dstack.report.rich_text import Row, SafeText, short_path, shortened_left
from dstack.report.summaries import failures_in_words, headline
from dstack.report.text import WIDTH, print_report
from dstack.words import UNSEEN, visible
from tests.fuzzing.effort import examples
from tests.fuzzing.hostile_text import hostile
from tests.unit.scenes import JOB, Scene, SceneProcess
from tests.unit.support.random_snapshots import related_snapshots


def deadlocked(scene: Scene | None = None) -> Scene:
    """A driver behind two actors that wait for each other."""
    scene = scene or Scene()
    driver, left, right = scene.driver(), scene.actor("Left", name="l"), scene.actor("Right")
    ping = scene.call(left, "ping", by=driver)
    pong = scene.call(right, "pong", by=left)
    back = scene.call(left, "back", by=right)
    driver.gets(ping)
    left.runs(ping).gets(pong)
    right.runs(pong).gets(back)
    return scene


def confirmed(scene: Scene) -> Scene:
    return scene.sample().second_sample()


def infeasible() -> Scene:
    scene = Scene()
    driver = scene.driver()
    driver.gets(scene.task("train", by=driver, state="PENDING_NODE_ASSIGNMENT", required_resources={"GPU": 8.0}))
    return scene


def awaiting() -> Scene:
    """A driver behind two async actors; each awaits the other's only call, one through an asyncio task."""
    scene = Scene()
    driver = scene.driver()
    left, right = scene.async_actor("Left", name="l"), scene.async_actor("Right")
    ping, pong = scene.call(left, "ping", by=driver), scene.call(right, "pong", by=left)
    first, second = left.begins(ping), right.begins(pong)
    first.awaits(left.coroutine(ping).awaits(pong), what="asyncio.wait_for")
    second.awaits(ping)
    driver.gets(ping)
    return scene


def slow(waiters: int = 1) -> Scene:
    """Drivers that wait for one running task."""
    scene = Scene()
    owner = scene.driver()
    call, _ = scene.run("work", by=owner, CPU=1.0)
    owner.gets(call)
    for _ in range(waiters - 1):
        scene.driver().gets(call)
    return scene


def blind() -> Scene:
    """The same with an unreadable worker."""
    scene = slow()
    silent = scene.worker()
    silent.is_unreachable = silent.is_unreadable = True
    scene.failures.append(Failure(stage="core worker", reason="no answer within 3.0 s", pid=silent.worker.pid))
    return scene


def text_of(snapshot: Snapshot, *, terminal: bool = False, details: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, highlight=False, force_terminal=terminal, width=200)
    print_report(console, AnalysedSnapshot.of(snapshot), details=details)
    return out.getvalue()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


# Text


def test_the_verdict_comes_first_then_the_diagram_the_fix_and_what_was_observed() -> None:
    text = text_of(confirmed(deadlocked()).snapshot())

    assert text.startswith("DEADLOCK  Left.ping and Right.pong wait for each other\nConfirmed by 2 samples")
    assert "1 more is blocked behind it." in text
    parts = [
        text.index(part) for part in ("DEADLOCK", "Confirmed", "┌▶ 1  ", "Blocked behind it: ", "Fix: ", "Observed: ")
    ]
    assert parts == sorted(parts)
    assert "3 of 3 workers and drivers, 1 of 1 nodes" in text


def test_the_diagram_of_a_cycle_leads_from_its_last_entry_to_its_first() -> None:
    text = text_of(confirmed(deadlocked()).snapshot())

    lines = text[text.index("┌▶") : text.index("\n\nFix")].splitlines()
    assert re.fullmatch(r'┌▶ 1  Left.ping   actor "l"   pid \d+ on 10.0.0.2', lines[0])
    assert re.fullmatch(r"│     /srv/app/app.py:\d+   return ping_of\(me\)", lines[1])
    assert lines[2] == "│     waits in ray.get for Right.pong (→2)"
    assert lines[3].startswith("│  2  Right.pong   actor ")
    assert lines[5] == "└─    waits in ray.get for Left.back (queued behind →1)", (
        "the queued call is no entry of its own"
    )
    assert lines[6].startswith("Blocked behind it: driver train.py ")


@pytest.mark.parametrize("length", [3, 8, 100, 1000])
def test_a_cycle_of_any_size_has_at_most_25_lines(length: int) -> None:
    scene = Scene()
    driver = scene.driver()
    actors = [scene.actor("Member") for _ in range(length)]
    calls = [scene.call(actor, "turn", by=driver) for actor in actors]
    for at, actor in enumerate(actors):
        actor.runs(calls[at]).gets(scene.call(actors[(at + 1) % length], "turn", by=actor))
    driver.gets(calls[0])

    lines = text_of(confirmed(scene).snapshot()).splitlines()

    assert len(lines) <= 25
    assert next(at for at, line in enumerate(lines, 1) if line.startswith("Fix: ")) <= 15
    assert length <= 5 or f"│  3-{length - 1}  {length - 3} × Member.turn" in lines


def test_the_details_name_every_member_and_what_it_waits_for() -> None:
    story = re.sub(r"\s+", " ", text_of(confirmed(deadlocked()).snapshot(), details=True))

    assert 'Left.ping (actor Left "l", pid 3000, node 10.0.0.2) waits in ray.get for Right.pong of actor' in story
    assert 'Left.back (actor Left "l", pid 3000, node 10.0.0.2) is queued behind Left.ping of "l"' in story
    assert "Blocked behind it: driver train.py (pid 1000, node 10.0.0.2) waits in ray.get for Left.ping" in story
    assert re.search(r"/srv/app/app\.py:\d+ return ping_of\(me\)", story)


def test_the_stitched_stack_goes_from_the_driver_around_the_cycle() -> None:
    text = text_of(confirmed(deadlocked()).snapshot(), details=True)

    stack = text[text.index("Stitched stack") : text.index("Observed")]
    names = re.findall(r"driver train\.py|→ [\w.]+", stack)
    assert names == ["driver train.py", "→ Left.ping", "→ Right.pong", "→ Left.back", "→ Left.ping"]
    assert "Left.ping (2), as above" in stack
    assert "Stitched stack" not in text_of(confirmed(deadlocked()).snapshot())


def test_coroutines_are_described_as_such() -> None:
    text = text_of(confirmed(awaiting()).snapshot(), details=True)
    story = re.sub(r"\s+", " ", text)

    place = '(coroutine of actor Left "l", pid 3000, node 10.0.0.2)'
    assert f"Left.ping {place} waits in asyncio.wait_for for asyncio task work of Left.ping" in story
    assert f"asyncio task work of Left.ping {place} awaits Right.pong of actor" in story


def test_the_stitched_stack_goes_through_coroutines() -> None:
    text = text_of(confirmed(awaiting()).snapshot(), details=True)

    stack = text[text.index("Stitched stack") : text.index("Observed")]
    steps = re.findall(r"driver train\.py|→ (?:asyncio task|[\w.]+)|app\.py:\d+", stack)
    assert [step for step in steps if not step.startswith("app")] == [
        "driver train.py",
        "→ Left.ping",
        "→ asyncio task",
        "→ Right.pong",
        "→ Left.ping",
    ]
    assert len(steps) == 9, "each of them at a line of code"


def test_a_deadlock_in_one_sample_is_only_suspected() -> None:
    text = text_of(deadlocked().sample().snapshot())

    assert text.startswith("DEADLOCK  suspected: ")
    assert "\nSuspected: not confirmed by a second sample" in text


def test_what_was_not_observed_follows_the_fix_with_its_reason() -> None:
    text = text_of(blind().snapshot())

    assert text.startswith("RUNNING  not everything was read; driver train.py waits for work, ")
    assert "Observed: 2 of 3 workers" in text
    assert text.index("Inconclusive: ") < text.index("Not observed: core worker, pid") < text.index("within 3.0 s")


def test_paths_are_shortened_from_the_left() -> None:
    assert shortened_left("/srv/app/train.py:12", 40) == "/srv/app/train.py:12"
    assert shortened_left("/srv/deep/down/app/train.py:12", 20) == "…/app/train.py:12"
    assert shortened_left("/srv/a_name_that_is_long_itself.py:12", 10) == "…/a_name_that_is_long_itself.py:12"


def test_the_file_and_line_survive_long_paths_and_names() -> None:
    scene = confirmed(deadlocked())
    snapshot = scene.snapshot()
    long = {frame.file: f"/a/{'very/' * 40}long/{frame.file.rpartition('/')[2]}" for frame in snapshot.frames}
    frames = tuple(dataclasses.replace(frame, file=long[frame.file]) for frame in snapshot.frames)
    sources = {long.get(file, file): lines for file, lines in snapshot.sources.items()}

    text = text_of(msgspec.structs.replace(snapshot, frames=frames, sources=sources))

    assert re.search(r"│     …/\S*app.py:\d+   return ping_of\(me\)", text)
    assert max(map(len, text.splitlines())) <= WIDTH


def test_similar_entries_are_folded_with_their_number() -> None:
    scene = slow()
    owner = scene.procs[0]
    clerk = scene.actor("Clerk")
    calls = [scene.call(clerk, "stamp", by=owner) for _ in range(50)]
    clerk.runs(calls[0])
    scene.driver().gets(*calls)

    text = text_of(scene.snapshot(), details=True)

    assert "49 × Clerk.stamp" in text
    assert len(text.splitlines()) < 60


def test_a_driver_that_computes_runs_and_one_that_sleeps_is_idle() -> None:
    busy, idle = Scene(), Scene()
    busy.driver()
    idle.driver().threads[0].sleeps = True

    assert text_of(busy.snapshot()).startswith("RUNNING  driver train.py runs (app.py:10)\n")
    assert text_of(idle.snapshot()).startswith("IDLE  driver train.py sleeps (app.py:10)\n")


def test_a_cluster_without_a_driver_is_idle_and_one_without_nodes_unknown() -> None:
    idle, scene = Scene(), Scene()
    idle.node()

    assert text_of(idle.snapshot()).startswith("IDLE  no driver is connected\n")
    assert text_of(scene.snapshot()).startswith("UNKNOWN  nothing was read\n")

    scene.failures.append(Failure(stage="control plane", reason="no node has joined", cause="starting", remedy="Wait"))

    assert text_of(scene.sample().snapshot()).startswith("UNKNOWN  nothing was read: no node has joined\n")
    assert "it lost its state" not in text_of(scene.snapshot())


def test_waits_outside_of_ray_are_counted_by_call_and_line() -> None:
    scene = Scene()
    driver = scene.driver()
    for number in range(3):
        consumer = driver.thread(f"consumer {number}", "user").is_in("queue.Queue.get")
        consumer.line = 7
    driver.thread("other", "user").is_in("subprocess.Popen.wait")
    driver.threads[0].is_in("threading.Event.wait")

    diagnosis = scene.diagnose()

    assert (diagnosis.verdict, diagnosis.findings) == ("idle", ())
    first, second, _ = diagnosis.outside
    assert (first.call, first.kind, first.count, first.line) == ("queue.Queue.get", "thread", 3, 7)
    assert headline(diagnosis) == (
        "3 threads wait in queue.Queue.get (app.py:7); "
        f"{second.name} waits in {second.call} (app.py:{second.line}); 1 more at other lines"
    )


def test_a_verdict_on_a_part_says_so() -> None:
    scene = Scene()
    scene.driver()
    scene.driver().is_unreadable = True

    assert headline(scene.diagnose()) == "not everything was read; driver train.py runs (app.py:10)"
    assert headline(diagnose(scene.snapshot(), job=JOB)) == headline(scene.diagnose())


def test_what_less_than_half_was_read_of_is_unknown() -> None:
    scene = Scene()
    scene.driver()
    for _ in range(2):
        scene.driver().is_unreadable = True

    diagnosis = scene.diagnose()

    assert (diagnosis.verdict, headline(diagnosis)) == (
        "unknown",
        "too little was read: 1 of 3 workers and drivers",
    )


SCENES = {
    "deadlocked": lambda: confirmed(deadlocked()),
    "awaiting": lambda: confirmed(awaiting()),
    "infeasible": infeasible,
    "slow": lambda: slow(40),
    "blind": blind,
    "empty": Scene,
}


@pytest.mark.parametrize("name", SCENES)
def test_lines_are_narrow_and_plain_in_a_pipe(name: str) -> None:
    lines = text_of(SCENES[name]().snapshot()).splitlines()

    assert max(map(len, lines)) <= WIDTH
    assert not [line for line in lines if line != line.rstrip()]
    assert not [line for line in lines if "\x1b" in line]


def test_colour_is_for_terminals() -> None:
    assert "\x1b[" in text_of(deadlocked().snapshot(), terminal=True)


def test_files_are_relative_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert short_path(f"{tmp_path}/app/app.py") == "app/app.py"
    assert short_path("/elsewhere/app.py") == "/elsewhere/app.py"
    assert short_path("/usr/lib/python3/site-packages/ray/_private/worker.py") == "ray/_private/worker.py"


def test_files_are_shown_without_a_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()

    assert short_path("/elsewhere/app.py") == "/elsewhere/app.py"


@pytest.mark.parametrize("name", ["deadlocked", "infeasible", "slow"])
def test_untrusted_text_cannot_control_the_terminal(name: str) -> None:
    attacked = hostile(SCENES[name]().snapshot())

    for text in (text_of(attacked), check_json(AnalysedSnapshot.of(attacked)).decode()):
        assert not UNSEEN.search(text.replace("\n", ""))
        assert "[bold red]x[/]" in text, "markup is shown, not obeyed"
    assert "\\x1b" in text_of(attacked), "what was there is shown"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_the_report_is_printed_in_any_encoding(encoding: str, tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    save(confirmed(deadlocked()).snapshot(), file)

    result = subprocess.run(
        [sys.executable, "-m", "dstack", "show", str(file)],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        check=True,
    )

    text = result.stdout.decode(encoding)
    assert "+> 1  Left.ping" in text
    assert "+-    waits in ray.get for Left.back (queued behind ->1)" in text


def test_visible_keeps_printable_characters() -> None:
    assert visible("naïve × 漢字 🚀") == "naïve × 漢字 🚀"
    assert visible("a\tb\x1b\x00") == "a b\\x1b\\x00"


@given(related_snapshots())
@examples(100, suppress_health_check=[HealthCheck.too_slow])
def test_any_snapshot_can_be_reported(snapshot: Snapshot) -> None:
    lines = text_of(snapshot).splitlines()

    assert max(map(cell_len, lines)) <= WIDTH
    assert all(line.isprintable() for line in lines)
    assert json_of(snapshot).schema == "dstack.check/2"


# JSON


class JsonTarget(msgspec.Struct):
    execution: str
    ref: str | None
    task_id: str | None
    task_name: str | None
    actor_id: str | None


class JsonWait(msgspec.Struct):
    kind: str
    needs: int
    of: int
    timeout_s: float | None
    evidence: Literal["exact", "inferred"]
    targets: list[JsonTarget]


class JsonSince(msgspec.Struct):
    at_least: float | None
    at_most: float | None


class JsonMember(msgspec.Struct):
    execution: str
    task_id: str | None
    task_name: str | None
    attempt: int | None
    actor_id: str | None
    actor_class: str | None
    actor_name: str | None
    job_id: str | None
    node_id: str | None
    node_ip: str | None
    pid: int | None
    world: str
    world_size: int | None
    rank: int | None
    local_rank: int | None
    dimensions: dict[str, int]
    labels: dict[str, str]
    thread: str | None
    coroutine: bool
    torn: bool
    alike: int
    file: str | None
    line: int | None
    function: str | None
    source: str | None
    since_s: JsonSince
    waits_for: list[JsonWait]


class JsonBlocker(JsonMember):
    waiters_direct: int
    waiters_total: int


class JsonAdvice(msgspec.Struct):
    kind: Literal["fix", "next"]
    text: str


class JsonFinding(msgspec.Struct):
    kind: Literal["deadlock", "orphaned", "infeasible", "starved", "running", "polling", "stalled", "failed"]
    confirmed: bool
    summary: str
    advice: JsonAdvice | None
    explanation: list[str]
    resources: list[str]
    jobs: list[str]
    waiters_direct: int
    waiters_total: int
    watched_s: float | None
    since_s: JsonSince
    members: list[JsonMember]
    blocked_behind: list[JsonMember]
    polled_by: list[JsonMember]
    final_blockers: list[JsonBlocker]


class JsonRatio(msgspec.Struct):
    seen: int
    total: int


class JsonFailure(msgspec.Struct):
    node_id: str | None
    pid: int | None
    stage: str
    reason: str
    elapsed_s: float


class JsonCoverage(msgspec.Struct):
    nodes: JsonRatio
    workers: JsonRatio
    failures: list[JsonFailure]


class JsonPause(msgspec.Struct):
    median: float
    max: float


class JsonTiming(msgspec.Struct):
    total_s: float
    sample_s: list[float]
    pause_ms: JsonPause | None


class JsonCheck(msgspec.Struct):
    """The contract of ``check --json``; a missing key fails the decoding.

    It does not use :mod:`dstack.report.check_schema` on purpose: a field removed there fails here.
    """

    schema: Literal["dstack.check/2"]
    verdict: Literal["deadlock", "hang", "stalled", "unknown", "running", "idle"]
    incomplete: bool
    job: str | None
    findings: list[JsonFinding]
    coverage: JsonCoverage
    timing: JsonTiming


def json_of(snapshot: Snapshot) -> JsonCheck:
    return msgspec.json.decode(check_json(AnalysedSnapshot.of(snapshot)), type=JsonCheck)


@pytest.mark.parametrize("name", SCENES)
def test_the_json_keeps_its_contract(name: str) -> None:
    assert json_of(SCENES[name]().snapshot()).schema == "dstack.check/2"


def test_the_json_has_the_deadlock() -> None:
    scene = confirmed(deadlocked())
    driver, left, right = scene.procs

    document = json_of(scene.snapshot())

    finding = document.findings[0]
    assert (document.verdict, finding.kind, finding.confirmed) == ("deadlock", "deadlock", True)
    assert [member.task_name for member in finding.members] == ["Left.ping", "Right.pong", "Left.back"]
    assert [member.pid for member in finding.members] == [pid(left), pid(right), pid(left)]
    assert finding.members[0].waits_for[0].targets[0].task_name == "Right.pong"
    assert finding.members[0].source == "return ping_of(me)"
    assert (finding.members[2].thread, finding.members[2].line) == (None, None), "nothing runs there"
    assert [member.pid for member in finding.blocked_behind] == [pid(driver)]
    assert document.timing.sample_s == [0.5, 0.5]


def test_the_json_marks_coroutines() -> None:
    document = json_of(confirmed(awaiting()).snapshot())

    (finding,) = document.findings
    ping = next(member for member in finding.members if member.task_name == "Left.ping")
    assert (ping.coroutine, ping.thread, ping.source) == (True, "AsyncIO Thread: default", "return ping_of(me)")
    assert (ping.waits_for[0].kind, ping.waits_for[0].evidence) == ("await", "exact")
    assert [member.coroutine for member in finding.blocked_behind] == [False]


def test_a_stack_of_a_thread_that_ran_during_its_reading_is_marked_as_inconsistent() -> None:
    scene = slow()
    blocker = next(thread for proc in scene.procs for thread in proc.threads if not thread.call)
    blocker.is_torn = True

    torn = scene.snapshot()

    assert TORN_STACK in " ".join(text_of(torn, details=True).split())
    assert TORN_STACK not in " ".join(text_of(slow().snapshot(), details=True).split())
    (finding,) = json_of(torn).findings
    assert [member.torn for member in finding.final_blockers] == [True]
    assert not any(member.torn for member in finding.members)


def pid(proc: SceneProcess) -> int:
    return proc.worker.pid


# Commands on files


@pytest.mark.parametrize(
    ("name", "code"), [("deadlocked", 1), ("infeasible", 1), ("slow", 0), ("empty", 0), ("blind", 4)]
)
def test_check_has_an_exit_code_for_each_verdict(name: str, code: int, tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json.gz"
    save(SCENES[name]().snapshot(), file)

    assert run("check", str(file)).exit_code == code
    assert run("check", "--json", str(file)).exit_code == code
    assert run("show", str(file)).exit_code == 0


def test_a_suspected_deadlock_counts(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    save(deadlocked().sample().snapshot(), file)

    assert run("check", str(file)).exit_code == 1


def test_show_prints_the_report_and_json_the_json(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.json"
    save(confirmed(deadlocked()).snapshot(), file)

    assert run("show", str(file)).stdout.startswith("DEADLOCK  ")
    assert msgspec.json.decode(run("show", "--json", str(file)).stdout, type=JsonCheck).verdict == "deadlock"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["show", "nowhere.json"], 3, "nowhere.json"),
        (["check", "nowhere.json"], 3, "nowhere.json"),
        (["check", "nowhere.json", "--address", "h:1"], 2, "cannot be combined"),
        (["check", "--timeout", "0"], 2, "timeout"),
        (["check", "snapshot.json", "--pause"], 2, "cannot be combined"),
        (["check", "snapshot.json", "--native"], 2, "cannot be combined"),
        (["check", "--wait", "--job", "01000000", "--native"], 2, "cannot be combined"),
        (["show", "snapshot.json", "--json", "--details"], 2, "cannot be combined"),
        (["snapshot", "-o", "snapshot.txt"], 2, ".json"),
        (["demo", "two_actor"], 2, "Did you mean two_actors"),
        (["demo", "--list", "no such word"], 2, "No example has"),
        (["nothing"], 2, "nothing"),
    ],
)
def test_bad_input_ends_in_a_sentence_and_its_code(arguments: list[str], code: int, message: str) -> None:
    result = run(*arguments)

    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_the_examples_are_listed() -> None:
    whole = run("demo", "--list").stdout

    assert re.search(r"^First examples \(\d+\)\n(  \w.*\n)*  two_actors +Two actors", whole)
    some = run("demo", "--list", "semaphore").stdout.split("\n")
    assert {len(line.split()) > 2 and "semaphore" in line for line in some if line.startswith("  ")} == {True}


def test_many_similar_pending_tasks_are_one_entry_with_their_number() -> None:
    scene = Scene()
    driver, clerk = scene.driver(), scene.actor("Clerk")
    calls = [scene.call(clerk, "stamp", by=driver) for _ in range(2 * MANY)]
    clerk.runs(calls[0])
    driver.gets(*calls)

    (finding,) = json_of(scene.snapshot()).findings

    assert [(member.execution, member.alike) for member in finding.members] == [
        ("Clerk.stamp", 2 * MANY - 2),
        ("driver train.py", 0),
    ]
    assert finding.waiters_total == 2 * MANY
    assert f"{2 * MANY - 1:,} × Clerk.stamp" in text_of(scene.snapshot(), details=True)


def test_similar_waiters_without_dependents_begin_one_stack() -> None:
    scene = Scene()
    driver, clerk = scene.driver(), scene.actor("Clerk")
    calls = [scene.call(clerk, "stamp", by=driver) for _ in range(50)]
    clerk.runs(calls[0])

    text = text_of(scene.snapshot(), details=True)

    assert re.search(r"^ 1  49 × Clerk.stamp", text, re.MULTILINE)
    assert "not shown" not in text


def test_the_same_failure_of_several_processes_is_one_sentence() -> None:
    similar = [
        Failure(stage="stacks", reason="no permission", pid=pid, sample=sample) for pid in (7, 8) for sample in (1, 2)
    ]
    other = Failure(stage="stacks", reason="pid 7 is 7", pid=7)

    assert failures_in_words(deadlocked().snapshot(), [*similar, other]) == [
        "stacks, 2 processes, among them pid 7: no permission.",
        "stacks, pid 7: pid 7 is 7.",
    ]


@pytest.mark.parametrize("location", ["", "app.py:7"])
def test_what_a_row_begins_with_is_dim_and_its_text_is_not(location: str) -> None:
    console = Console(width=80)
    (line,) = Row("1  ", "   ", SafeText("text"), location=location).lines(80, console)

    assert line.get_style_at_offset(console, 0).dim
    assert not line.get_style_at_offset(console, line.plain.index("text")).dim
