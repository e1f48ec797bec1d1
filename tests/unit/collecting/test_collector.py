"""Snapshots by a child process: its output, its failures, and its deadlines."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from dstack import api
from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.cli import main
from dstack.collecting import collector
from dstack.collecting.collector import Collector, Terms
from dstack.errors import ClusterError, DstackError, UsageError
from dstack.files.snapshot_file import load, loads, save
from dstack.model.snapshot import Snapshot
from dstack.observed.node import Failure
from dstack.observed.reading_options import ReadingOptions
from dstack.processes.child import Child, Message
from tests.paths import ROOT
from tests.processes import wait_until
from tests.unit.scenes import Scene

CAPTURE = """
import ctypes, os, signal, sys, time, types
from dstack.errors import ClusterError, UsageError
from dstack.files.snapshot_file import load

class Session:
    def __init__(self, driver): pass
    def close(self): pass

def take(session, address, terms, *, progress, plan):
    timeout_s, options, *times = terms
    example = load({file!r})
{body}
    return example

sys.modules["dstack.probes.cluster"] = types.SimpleNamespace(ClusterProbe=None, poll_cluster=None)
sys.modules["dstack.probes.node_access.node_readers"] = types.SimpleNamespace(ProbeSession=Session)
from dstack.collecting import capture
capture.take = take
"""
"""Replaces what reads a cluster in the child process, so that gRPC is not loaded."""
QUIET_S = 60.0
FOREVER = "os.kill(os.getpid(), signal.SIGSTOP)"


@pytest.fixture
def example() -> Snapshot:
    """The snapshot that the child process returns."""
    scene = Scene()
    call, _ = scene.run("work", by=scene.driver())
    scene.procs[0].gets(call)
    return scene.sample().snapshot()


@pytest.fixture
def does(tmp_path: Path, example: Snapshot, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes the child process run this code before it returns a snapshot."""

    def begin(code: str) -> None:
        save(example, tmp_path / "snapshot.json")
        body = "".join(f"    {line}\n" for line in code.splitlines())
        (tmp_path / "sitecustomize.py").write_text(CAPTURE.format(file=str(tmp_path / "snapshot.json"), body=body))
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")

    return begin


def take(timeout_s: float = QUIET_S, steps: list[str] | None = None, early: list[Snapshot] | None = None) -> Snapshot:
    noted, received = steps if steps is not None else [], early if early is not None else []
    with Collector("127.0.0.1:1", Terms(timeout_s)) as one:
        return one.take(noted.append, received.append)


def test_output_of_c_code_is_not_in_a_snapshot(does: Callable[[str], None], example: Snapshot) -> None:
    does(
        "progress('reading')\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.puts(b'a library greets')\n"
        "libc.fflush(None)\n"
        "os.write(1, b'snapshot 7\\n')\n"
        "print('so does Python', flush=True)\n"
        "plan(example)\n"
        "libc.puts(b'and again')\n"
        "libc.fflush(None)"
    )
    steps: list[str] = []
    early: list[Snapshot] = []

    assert take(steps=steps, early=early) == example
    assert (steps, early) == (["starting", "reading"], [example])


def test_the_first_sample_is_sent_once_and_is_part_of_the_snapshot(
    does: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene()
    call, _ = scene.run("work", by=scene.driver())
    scene.procs[0].gets(call)
    both = scene.sample().second_sample().snapshot()
    does("from msgspec.structs import replace\nplan(replace(example, samples=example.samples[:1]))")
    save(both, tmp_path / "snapshot.json", force=True)
    received: list[Snapshot] = []
    receive = Child.receive

    def noted(child: Child, deadline: float | None = None) -> Message:
        message = receive(child, deadline)
        if message.kind in ("first", "snapshot"):
            received.append(loads(message.value))
        return message

    monkeypatch.setattr(Child, "receive", noted)

    assert take() == both
    assert [one.samples for one in received] == [both.samples[:1], both.samples[1:]]


@pytest.mark.parametrize(
    ("raised", "kind", "message", "remedy"),
    [
        ("ClusterError('No cluster.', 'Start one.')", ClusterError, "No cluster.", "Start one."),
        ("UsageError('Odd.')", UsageError, "Odd.", None),
        ("OSError(24, 'x')", DstackError, "dstack reached the limit of open files.", None),
        (
            "ValueError('odd')",
            DstackError,
            "Internal error in dstack: ValueError: odd",
            "Run it again with dstack -v, and please report the output.",
        ),
        ("ImportError('no ray')", DstackError, "Internal error in dstack: ImportError: no ray", None),
    ],
)
def test_an_error_of_the_child_is_raised_in_the_parent(
    raised: str, kind: type[DstackError], message: str, remedy: str | None, does: Callable[[str], None]
) -> None:
    does(f"raise {raised}")

    with pytest.raises(kind) as caught:
        take()

    assert type(caught.value) is kind
    assert caught.value.message == message
    assert remedy is None or caught.value.remedy == remedy
    shown = "".join(traceback.format_exception(caught.value))
    assert "sitecustomize.py" in shown, "where it was raised"


def test_a_process_that_is_killed_is_an_error_with_its_signal(does: Callable[[str], None]) -> None:
    does("os.kill(os.getpid(), signal.SIGKILL)")

    with pytest.raises(ClusterError, match="The process that takes snapshots was ended by signal 9"):
        take()


def test_a_cancelled_collector_raises_cancelled(does: Callable[[str], None]) -> None:
    does(f"progress('reading')\n{FOREVER}")
    one = Collector("127.0.0.1:1", Terms(QUIET_S))

    with pytest.raises(ClusterError, match=r"^Cancelled\.$"):
        one.take(lambda _: one.cancel(), lambda _: None)
    with pytest.raises(ClusterError, match=r"^Cancelled\.$"):
        one.take(lambda _: None, lambda _: None)


def test_one_child_takes_all_snapshots(
    does: Callable[[str], None], example: Snapshot, children: Callable[[], list[psutil.Process]]
) -> None:
    does("print(os.getpid())")
    with Collector("127.0.0.1:1", Terms(QUIET_S)) as one:
        seen = set()
        for _ in range(3):
            assert one.take() == example
            seen.update(children())

    assert len(seen) == 1


def test_a_child_that_has_ended_is_replaced(
    does: Callable[[str], None], example: Snapshot, children: Callable[[], list[psutil.Process]]
) -> None:
    does("pass")
    with Collector("127.0.0.1:1", Terms(QUIET_S)) as one:
        one.take()
        (first,) = children()
        first.kill()
        wait_until(lambda: first.status() == psutil.STATUS_ZOMBIE, deadline_s=QUIET_S, what=lambda: f"end of {first}")

        assert one.take() == example
        (second,) = children()
        assert second != first


@pytest.mark.usefixtures("children")
def test_a_collector_that_is_cancelled_between_two_snapshots_ends_its_child(does: Callable[[str], None]) -> None:
    does("pass")
    one = Collector("127.0.0.1:1", Terms(QUIET_S))
    one.take()

    one.cancel()


class Scripted(Collector):
    """A collector whose snapshots are these; each takes ``takes_s``."""

    def __init__(
        self, *snapshots: Snapshot | ClusterError, timeout_s: float = 30.0, watch_s: float | None = None
    ) -> None:
        super().__init__("127.0.0.1:1", Terms(timeout_s, watch_s=watch_s))
        self.left, self.taken = list(snapshots), list[float]()

    def take(self, *_: Any, terms: Terms | None = None, began: float | None = None, **__: Any) -> Snapshot:
        assert terms is not None
        self.taken.append(terms.timeout_s)
        found = self.left.pop(0)
        if isinstance(found, ClusterError):
            raise found
        return found


def moving(count: int = 1) -> Snapshot:
    """A driver that waits for calls of an async actor, whose coroutines are in motion."""
    scene = Scene()
    driver, server = scene.driver(), scene.async_actor("Server")
    server.coroutines_read = True
    server.running = [scene.call(server, f"serve{number}", by=driver) for number in range(count)]
    driver.gets(*server.running)
    return scene.sample().snapshot()


def not_allowed() -> Snapshot:
    scene = Scene()
    scene.driver().idles().access = "py-spy"
    return scene.sample().snapshot()


def settled() -> Snapshot:
    scene = Scene()
    scene.driver().idles()
    return scene.sample().snapshot()


def taken_by(one: Scripted) -> tuple[bool, int]:
    """Whether the result is incomplete, and how many snapshots were taken."""
    found = one.take_analysed(AnalysedSnapshot.of)
    return found.diagnosis.incomplete, len(one.taken)


@pytest.fixture
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "PAUSE_S", 0.0)


@pytest.mark.usefixtures("without_pauses")
def test_an_inconclusive_snapshot_is_taken_again_until_one_is_conclusive() -> None:
    one = Scripted(moving(), moving(), settled(), settled())

    assert taken_by(one) == (False, 3)
    assert one.taken == sorted(one.taken, reverse=True), "within the same timeout"


@pytest.mark.usefixtures("without_pauses")
def test_a_conclusive_snapshot_and_one_that_no_other_can_complete_are_the_only_ones() -> None:
    assert taken_by(Scripted(settled())) == (False, 1)
    assert taken_by(Scripted(not_allowed())) == (True, 1)
    assert taken_by(Scripted(moving(), watch_s=5.0)) == (True, 1)


@pytest.mark.usefixtures("without_pauses")
def test_the_most_complete_of_inconclusive_snapshots_counts() -> None:
    one = Scripted(moving(3), moving(1), moving(2), moving(3))

    found = one.take_analysed(AnalysedSnapshot.of)

    assert (len(one.taken), len(found.diagnosis.gaps)) == (
        collector.TRIES,
        len(AnalysedSnapshot.of(moving(1)).diagnosis.gaps),
    )


def starting() -> Snapshot:
    failure = Failure(stage="control plane", reason="the GCS lists no live node", cause="starting")
    return replace(Scene().sample().snapshot(), failures=(failure,))


@pytest.mark.usefixtures("without_pauses")
def test_a_cluster_that_starts_is_awaited_within_the_timeout() -> None:
    attempts = collector.TRIES + 3

    assert taken_by(Scripted(*[starting()] * attempts, settled())) == (False, attempts + 1)


@pytest.mark.usefixtures("without_pauses")
def test_a_failed_attempt_keeps_the_snapshot_before() -> None:
    assert taken_by(Scripted(moving(), ClusterError("No answer."))) == (True, 2)


def test_no_attempt_begins_that_the_timeout_would_end() -> None:
    slow = replace(moving(), total_s=20.0)

    assert taken_by(Scripted(slow, timeout_s=15.0)) == (True, 1)


def test_a_cancelled_attempt_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Scripted(moving(), ClusterError("Cancelled."))
    monkeypatch.setattr(time, "sleep", lambda _: one.cancel())

    with pytest.raises(ClusterError, match="Cancelled"):
        one.take_analysed(AnalysedSnapshot.of)


def test_an_error_of_a_snapshot_keeps_the_child(
    does: Callable[[str], None], children: Callable[[], list[psutil.Process]]
) -> None:
    does("raise ClusterError('No cluster.')")
    with Collector("127.0.0.1:1", Terms(QUIET_S)) as one:
        seen = set()
        for _ in range(2):
            with pytest.raises(ClusterError, match="No cluster"):
                one.take()
            seen.update(children())

    assert len(seen) == 1


@pytest.fixture
def late_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes the deadline pass when a message of this kind has arrived."""

    def set_kind(kind: str) -> None:
        receive = Child.receive
        arrived: list[str] = []

        def receive_until(child: Child, deadline: float | None = None) -> Message:
            message = receive(child, time.monotonic() if kind in arrived else deadline)
            arrived.append(message.kind)
            return message

        monkeypatch.setattr(Child, "receive", receive_until)

    return set_kind


@pytest.fixture
def children() -> Iterator[Callable[[], list[psutil.Process]]]:
    """Returns the child processes that this test has started; none may be left at its end."""
    before = psutil.Process().children()

    def started() -> list[psutil.Process]:
        return [child for child in psutil.Process().children() if child not in before]

    yield started
    assert started() == []


@pytest.mark.usefixtures("children")
def test_a_child_that_hangs_before_its_first_sample_is_killed_with_its_last_step_named(
    does: Callable[[str], None], late_after: Callable[[str], None]
) -> None:
    does(f"progress('reading the control plane')\n{FOREVER}")
    late_after("progress")

    with pytest.raises(
        ClusterError, match=r"The snapshot timed out after 65 s; the last step was: reading the control plane\."
    ):
        take(60.0)


@pytest.mark.usefixtures("children")
def test_a_child_that_hangs_after_its_first_sample_is_killed_and_the_sample_kept(
    does: Callable[[str], None], late_after: Callable[[str], None], example: Snapshot, tmp_path: Path
) -> None:
    does(f"plan(example)\n{FOREVER}")
    late_after("first")

    done = CliRunner().invoke(main, ["snapshot", "--timeout", "60", "-o", str(tmp_path / "kept.json")])
    kept = load(tmp_path / "kept.json")

    assert done.exit_code == 0
    assert "the second sample timed out after 65 s" in done.output
    assert kept.samples == example.samples
    (failure,) = kept.failures
    assert (failure.sample, failure.remedy) == (2, collector.LONGER)
    assert CliRunner().invoke(main, ["check", str(tmp_path / "kept.json")]).exit_code == 0


def test_a_slow_start_counts_towards_the_deadline(does: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "HANDOVER_S", 1000.0)
    does("")

    with pytest.raises(ClusterError, match="The start of dstack took longer than the timeout"):
        take()


def test_reading_has_its_own_timeout_within_the_deadline(
    does: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "LATE_S", 1000.0)
    does("raise UsageError(str(timeout_s))")

    with pytest.raises(UsageError) as caught:
        take(50.0)

    assert float(caught.value.message) == 50.0


def test_a_command_that_was_slow_to_begin_reads_for_less_and_reserves_as_long_for_its_end(
    does: Callable[[str], None],
) -> None:
    does("raise UsageError(f'Left: {timeout_s}')")
    limit_s = 60.0 + collector.LATE_S

    done = CliRunner().invoke(
        main, ["check", "--address", "127.0.0.1:1", "--timeout", "60"], obj=time.monotonic() - 20.0
    )

    left_s = float(done.output.removeprefix("Error: Left: "))
    assert 0.0 < left_s <= limit_s - collector.HANDOVER_S - 2 * 20.0


SLOW = """
import sys
import threading
import dstack.analysis.diagnose
from dstack.cli import inputs, main, snapshots
snapshots.EXPLAIN_S = 0.2
dstack.analysis.diagnose.diagnose = lambda *_, **__: threading.Event().wait()
inputs.take_analysed = lambda explain, *_, **__: explain(inputs.load_snapshot(sys.argv[1]))
main(["check"])
"""


def test_an_endless_explanation_is_killed_with_a_sentence(tmp_path: Path, example: Snapshot) -> None:
    save(example, tmp_path / "snapshot.json")

    done = subprocess.run(
        [sys.executable, "-c", SLOW, str(tmp_path / "snapshot.json")], capture_output=True, text=True, timeout=QUIET_S
    )

    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.splitlines() == [
        "Error: The analysis of the snapshot did not finish within 0.2 s.",
        "Analyse it without a time limit: dstack snapshot -o FILE, then dstack show FILE.",
    ]


@pytest.fixture
def arrived(does: Callable[[str], None]) -> Callable[[list[str]], Terms]:
    """Runs a command on a cluster; returns the terms of its snapshot."""
    does("import pickle\nraise UsageError(pickle.dumps(terms).hex())")

    def run(arguments: list[str]) -> Terms:
        done = CliRunner().invoke(main, [arguments[0], "--address", "host:1", *arguments[1:]])
        assert done.exit_code == 2
        return terms_in(done.output.splitlines()[0].removeprefix("Error: "))

    return run


def terms_in(text: str) -> Terms:
    found = pickle.loads(bytes.fromhex(text))
    assert isinstance(found, Terms)
    return found


def arrived_from(call: Callable[[], object]) -> Terms:
    with pytest.raises(UsageError) as caught:
        call()
    return terms_in(caught.value.message)


def test_options_arrive_from_commands_and_from_the_api(arrived: Callable[[list[str]], Terms]) -> None:
    pausing = ReadingOptions(pause=True)

    assert arrived(["snapshot", "--locals", "--pause"]).options == ReadingOptions(locals=True, pause=True)
    assert arrived(["stacks", "--native"]).options == ReadingOptions(native=True)
    assert arrived(["check", "--pause"]).options == pausing
    assert arrived_from(lambda: api.snapshot("host:1", pause=True)).options == pausing
    assert arrived_from(lambda: api.check("host:1", pause=True)).options == pausing


def test_the_time_of_observation_arrives_from_commands_and_from_the_api(arrived: Callable[[list[str]], Terms]) -> None:
    for command in ("snapshot", "check"):
        assert arrived([command, "--for", "2.5"]).watch_s == 2.5
        assert arrived([command]).watch_s is None
    assert arrived_from(lambda: api.check("host:1", watch_s=2.5)).watch_s == 2.5


@pytest.mark.parametrize(
    ("options", "history"),
    [
        ([], 0),
        (["--history"], 100_000),
        (["-o", "-"], 20_000),
        (["-o", "-", "--history"], 100_000),
        (["-o", "-", "--no-history"], 0),
    ],
)
def test_a_saved_snapshot_has_a_history(
    options: list[str], history: int, arrived: Callable[[list[str]], Terms]
) -> None:
    assert arrived(["snapshot", *options]).history == history


@pytest.mark.usefixtures("arrived")
def test_the_api_asks_for_the_whole_history() -> None:
    assert arrived_from(lambda: api.snapshot("host:1", history=True)).history == 100_000
