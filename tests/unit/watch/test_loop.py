"""The parts of a watch without a cluster: its files, its command, its events, its metrics."""

from __future__ import annotations

import errno
import json
import os
import re
import sys
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest
from msgspec.structs import replace
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from dstack.analysis.views.analysed_snapshot import AnalysedSnapshot
from dstack.errors import DstackError, SnapshotFileError, UsageError
from dstack.files.snapshot_file import load
from dstack.model.diagnosis import Ratio
from dstack.model.snapshot import Snapshot
from dstack.watch.alerts import Changes
from dstack.watch.events import MAX_OUTPUT, MAX_QUEUED, Command, Events
from dstack.watch.figures import Figures
from dstack.watch.loop import ClusterWatch
from dstack.watch.metrics import serve
from dstack.watch.settings import WatchSettings
from dstack.watch.snapshot_saver import MAX_UNSAVED, SnapshotDirectory
from dstack.words import UNSEEN
from tests.fuzzing.hostile_text import HOSTILE
from tests.processes import wait_until
from tests.unit.scenes import Scene

SOON_S = 60.0


def snapshot(after_s: float = 0.0) -> Snapshot:
    one = Scene().snapshot()
    return replace(one, taken_at=one.taken_at + after_s)


class RecordedEvents(Events):
    """Events that are recorded instead of printed."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded: list[tuple[str, str]] = []

    def emit(self, event: str, text: str, *, within_s: float = 0.0, **fields: object) -> None:
        self.recorded.append((event, text))

    def wait_for(self, count: int = 1) -> list[tuple[str, str]]:
        return wait_until(
            lambda: self.recorded if len(self.recorded) >= count else None,
            deadline_s=SOON_S,
            what=lambda: str(self.recorded),
        )


def read(path: Path) -> str:
    """The content of a file, or an empty text."""
    return path.read_text().strip() if path.exists() else ""


def full_disk() -> Any:
    """Make every write of a snapshot fail."""
    return patch("dstack.files.file_output._write", side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


# Files


def test_files_have_the_time_of_their_snapshot_and_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    path = SnapshotDirectory(tmp_path / "new" / "deep", 5).save(snapshot())

    assert path == tmp_path / "new" / "deep" / "dstack-20231114-221320.json.gz"
    assert path.stat().st_mode & 0o777 == 0o600
    assert load(path) == snapshot()


def test_the_oldest_files_are_deleted_and_no_others(tmp_path: Path) -> None:
    others = [
        "dstack-20200101-000000.json",
        "dstack-2020.json.gz",
        "mine.json.gz",
        "dstack-20200101-000000.json.gz.old",
    ]
    for name in others:
        (tmp_path / name).touch()
    ring = SnapshotDirectory(tmp_path, 3)

    paths = [ring.save(snapshot(second)) for second in range(5)]

    assert {path.name for path in tmp_path.iterdir()} == {*others, *(path.name for path in paths[2:])}


def test_files_of_an_earlier_watch_count(tmp_path: Path) -> None:
    for second in range(5):
        SnapshotDirectory(tmp_path, 9).save(snapshot(second))

    newest = SnapshotDirectory(tmp_path, 1).save(snapshot(9))

    assert list(tmp_path.iterdir()) == [newest]


def test_two_files_of_one_second_have_two_names(tmp_path: Path) -> None:
    ring = SnapshotDirectory(tmp_path, 9)

    assert [ring.save(snapshot()).name for _ in range(2)] == [
        "dstack-20231114-221320.json.gz",
        "dstack-20231114-221321.json.gz",
    ]


def test_a_page_is_named_like_its_snapshot_and_removed_with_it(tmp_path: Path) -> None:
    (tmp_path / "mine.html").touch()
    (tmp_path / "dstack-20231114-221321.html").touch()  # of a snapshot that a user has removed
    ring = SnapshotDirectory(tmp_path, 2)

    pages = []
    for second in range(3):
        path = ring.save(snapshot(second))
        pages.append(ring.save_page(path, b"page"))

    assert [page.name for page in pages] == [f"dstack-20231114-22132{second}.html" for second in (0, 2, 3)]
    assert pages[-1].read_bytes() == b"page"
    assert pages[-1].stat().st_mode & 0o777 == 0o600
    kept = {path.name for path in tmp_path.iterdir() if path.suffix == ".html"}
    assert kept == {"mine.html", "dstack-20231114-221321.html", pages[1].name, pages[2].name}


def test_earlier_snapshots_are_the_last_ones_before(tmp_path: Path) -> None:
    ring = SnapshotDirectory(tmp_path, 9)
    paths = [ring.save(snapshot(second)) for second in range(4)]

    assert ring.earlier(paths[3], 2) == paths[1:3]
    assert ring.earlier(paths[0], 2) == []


def test_a_file_in_place_of_the_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(SnapshotFileError, match="is not a directory"):
        SnapshotDirectory(tmp_path / "file", 5)


def watch(directory: Path, **settings: Any) -> ClusterWatch:
    return ClusterWatch(WatchSettings(address=None, directory=str(directory), **settings))


def deadlock() -> Snapshot:
    scene = Scene()
    left, right = scene.actor("Left"), scene.actor("Right")
    driver = scene.driver()
    left.runs(scene.call(left, "run", by=driver)).gets(scene.call(right, "step", by=left))
    right.runs(scene.call(right, "run", by=driver)).gets(scene.call(left, "step", by=right))
    return scene.sample().second_sample().snapshot()


def test_an_unwritten_snapshot_is_reported_and_written_later(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    document_file = tmp_path / "document"
    one, snapshot = watch(tmp_path / "files", command=f"cat > {document_file}"), deadlock()

    with full_disk():
        one._report(AnalysedSnapshot.of(snapshot), Changes(new=(0,)), 0.0)
        one._retry_saving()
    assert not list((tmp_path / "files").iterdir())
    document = json.loads(wait_until(lambda: read(document_file), deadline_s=SOON_S, what=lambda: "command"))
    assert (document["kind"], document["file"]) == ("deadlock", None)

    one._retry_saving()
    (path,) = (tmp_path / "files").iterdir()
    assert load(path) == snapshot
    lines = capfd.readouterr().err.splitlines()
    assert sum("unsaved   Cannot write" in line for line in lines) == 1
    assert any("deadlock: " in line and line.endswith("; not saved") for line in lines)
    assert any(f"saved     after a retry: {path}" in line for line in lines)


def test_the_finding_names_the_page_beside_its_snapshot(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one = watch(tmp_path, html=True, as_json=True)

    one._report(AnalysedSnapshot.of(deadlock()), Changes(new=(0,)), 0.0)

    printed = capfd.readouterr()
    document = json.loads(printed.out)["finding"]
    snapshot_file, page = Path(document["file"]), Path(document["page"])
    assert {path.name for path in tmp_path.iterdir()} == {snapshot_file.name, page.name}
    assert page.name == snapshot_file.name.replace(".json.gz", ".html")
    assert printed.err.rstrip().endswith(f"; {snapshot_file}, {page}")
    assert "wait for each other" in page.read_text()


def test_a_page_that_cannot_be_made_is_reported_and_the_finding_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one = watch(tmp_path, html=True)
    with patch("dstack.report.page.page_maker.PageMaker.page_of", side_effect=DstackError("No page.")):
        one._report(AnalysedSnapshot.of(deadlock()), Changes(new=(0,)), 0.0)

    lines = capfd.readouterr().err.splitlines()
    (path,) = tmp_path.iterdir()
    assert any(line.endswith(f"no page of {path}: No page.") for line in lines)
    assert any("deadlock: " in line and line.endswith(f"; {path}") for line in lines)


def test_snapshots_in_memory_are_bounded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one = watch(tmp_path)
    with full_disk():
        for second in range(MAX_UNSAVED + 2):
            one._saver.save(snapshot(second))
    one._retry_saving()

    assert len(list(tmp_path.iterdir())) == MAX_UNSAVED
    assert capfd.readouterr().err.count("is dropped") == 2


# Command


def test_the_command_gets_the_document_and_its_output_is_reported(tmp_path: Path) -> None:
    events = RecordedEvents()
    command = Command(f"cat > {tmp_path}/document; echo done", events)

    command.queue(b'{"kind": "deadlock"}\n')

    assert events.wait_for() == [("command", "exited with code 0; output: done")]
    assert (tmp_path / "document").read_bytes() == b'{"kind": "deadlock"}\n'


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("exit 3", "exited with code 3"),
        ("kill -TERM $$", "was ended by signal 15"),
        ("no-such-command-anywhere", r"exited with code 127; output: .*not found"),
        ("sleep 1000", "timed out after 1 s and was killed"),
        ("sleep 1000 &", "timed out after 1 s and was killed"),
        ("exec > /dev/null 2>&1; sleep 1000", "timed out after 1 s and was killed"),
        ("yes", rf"timed out after 1 s and was killed; output: [y\n]{{{MAX_OUTPUT - 1}}}"),
    ],
)
def test_a_failing_or_hanging_command_is_reported_and_does_not_block_the_next(
    line: str, expected: str, tmp_path: Path
) -> None:
    events = RecordedEvents()
    pid = tmp_path / "pid"
    command = Command(f"echo $$ > {pid}; {line}", events, timeout_s=1.0 if "timed out" in expected else SOON_S)

    command.queue(b"1")
    command.queue(b"2")

    for event, text in events.wait_for(2):
        assert event == "command"
        assert re.fullmatch(expected, text), text
    group = int(pid.read_text())
    wait_until(lambda: not alive_in(group), deadline_s=SOON_S, what=lambda: f"end of {alive_in(group)}")


def test_a_command_that_does_not_read_its_input_blocks_nothing() -> None:
    events = RecordedEvents()
    Command("true", events).queue(b"x" * 2**20)

    assert events.wait_for() == [("command", "exited with code 0")]


def test_findings_queued_for_a_command_are_bounded(tmp_path: Path) -> None:
    events = RecordedEvents()
    command = Command(f"touch {tmp_path}/begun; sleep 1000", events)
    command.queue(b"")
    wait_until((tmp_path / "begun").exists, deadline_s=SOON_S, what=lambda: "begun")

    for _ in range(MAX_QUEUED + 1):
        command.queue(b"")

    assert events.recorded == [("command", f"not run for a finding: {MAX_QUEUED} findings are already queued")]
    command.stop()


def test_a_stopped_command_is_killed_at_once_and_not_started_again(tmp_path: Path) -> None:
    events = RecordedEvents()
    pid = tmp_path / "pid"
    command = Command(f"echo $$ >> {pid}; sleep 1000", events)
    command.queue(b"")
    command.queue(b"")
    group = int(wait_until(lambda: read(pid), deadline_s=SOON_S, what=lambda: "pid"))

    command.stop()

    wait_until(lambda: not alive_in(group), deadline_s=1.0, what=lambda: f"end of {alive_in(group)}")
    assert pid.read_text().split() == [str(group)]
    assert not events.recorded


def alive_in(group: int) -> list[psutil.Process]:
    """The live processes of a group; some init processes reap orphans late."""
    return [one for one in psutil.process_iter() if _group_of(one) == group and _runs(one)]


def _group_of(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


# Events


def test_an_event_is_one_line_of_text_or_json(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    Events(as_json=True).emit("finding", "two\nlines\x1b[31m", count=1)

    printed = capfdbinary.readouterr()
    assert re.fullmatch(rb"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  finding   two\\nlines\\x1b\[31m\n", printed.err)
    document = json.loads(printed.out)
    assert (document["event"], document["text"], document["count"]) == ("finding", "two\nlines\x1b[31m", 1)


def test_an_event_cannot_control_the_terminal(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    Events(as_json=True).emit("finding", HOSTILE, finding={HOSTILE: HOSTILE})

    printed = capfdbinary.readouterr()
    for text in (printed.err.decode(), printed.out.decode()):
        assert text.count("\n") == 1
        assert not UNSEEN.search(text.rstrip("\n"))
    assert json.loads(printed.out)["finding"] == {HOSTILE: HOSTILE}


def test_a_long_text_is_cut(capfd: pytest.CaptureFixture[str]) -> None:
    Events().emit("finding", "x" * 100_000)

    assert len(capfd.readouterr().err) < 1000


def test_a_blocked_reader_delays_nothing_and_reads_whole_lines_later(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    monkeypatch.setattr("dstack.watch.events.STANDARD_ERROR", writer)
    events = Events()

    for _ in range(1000):
        events.emit("saved", "x" * 400, within_s=0.001)
    os.set_blocking(reader, False)
    read = os.read(reader, 2**20)
    events.emit("stopped", "at last")
    os.close(writer)

    assert len(read) < 1000 * 400
    lines = (read + os.read(reader, 2**20)).decode().splitlines()
    os.close(reader)
    assert lines[-1].endswith("  stopped   at last")
    assert all("  saved     xxx" in line for line in lines[:-1])


# Metrics


def metrics_of(figures: Callable[[], Figures]) -> dict[str, str]:
    with urllib.request.urlopen(serve("0", figures), timeout=5) as response:
        lines = response.read().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def test_metrics_have_the_current_figures() -> None:
    figures = Figures(
        is_up=True,
        findings={"deadlock": 2},
        found={"deadlock": 3},
        waits={"ray.get": 7, "lock": 1},
        oldest_wait_s=90.5,
        workers_seen=Ratio(observed=9, total=10),
        polls=12,
    )

    metrics = metrics_of(lambda: figures)

    assert (
        metrics.items()
        >= {
            "dstack_up": "1.0",
            'dstack_findings{kind="deadlock"}': "2.0",
            'dstack_findings{kind="stalled"}': "0.0",
            'dstack_findings_reported_total{kind="deadlock"}': "3.0",
            'dstack_waits{kind="ray.get"}': "7.0",
            "dstack_oldest_wait_seconds": "90.5",
            "dstack_snapshot_workers": "10.0",
            "dstack_snapshot_workers_observed": "9.0",
            "dstack_polls_total": "12.0",
        }.items()
    )
    assert float(metrics["dstack_cpu_seconds_total"]) > 0


FULL = Figures(is_up=True, findings={"deadlock": 2}, found={"deadlock": 3}, waits={"ray.get": 7})
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
PARSERS: dict[str, Callable[[str], Iterable[Metric]]] = {
    "text/plain": text_string_to_metric_families,
    OPENMETRICS: openmetrics_families,
}


@pytest.mark.parametrize("accepted", PARSERS)
def test_metrics_follow_the_conventions_of_prometheus(accepted: str) -> None:
    request = urllib.request.Request(serve("0", lambda: FULL), headers={"Accept": accepted})
    with urllib.request.urlopen(request, timeout=5) as response:
        assert response.headers["Content-Type"].startswith(accepted)
        text = response.read().decode()

    families = list(PARSERS[accepted](text))

    names = [family.name for family in families]
    assert "dstack_snapshot_nodes" in names
    assert len(names) == len(set(names))
    assert [problem for family in families for problem in problems_of(family)] == []
    if accepted == OPENMETRICS:
        assert {family.name for family in families if family.unit == "seconds"} == {
            name for name in names if name.endswith("_seconds")
        }


def problems_of(family: Metric) -> Iterator[str]:
    """The objections of `promtool check metrics`."""
    samples = {sample.name for sample in family.samples}
    words = family.name.split("_")
    if not family.documentation.endswith("."):
        yield f"{family.name}: no help text"
    if family.type not in ("counter", "gauge"):
        yield f"{family.name}: is a {family.type}"
    if family.type == "counter" and samples != {f"{family.name}_total"}:
        yield f"{family.name}: a counter's suffix is _total"
    if family.type == "gauge" and (samples != {family.name} or words[-1] in SUFFIXES):
        yield f"{family.name}: a gauge has a suffix of another type"
    if words[0] != "dstack" or not re.fullmatch("[a-z]+(_[a-z]+)*", family.name):
        yield f"{family.name}: no prefix, or no lower-case words"
    if {"counter", "gauge", "metric", *OTHER_UNITS} & {*words}:
        yield f"{family.name}: its type or no base unit is in its name"
    if "seconds" in words and words[-1] != "seconds":
        yield f"{family.name}: its unit is not its suffix"
    if any(label in ("le", "quantile", "job", "instance") for sample in family.samples for label in sample.labels):
        yield f"{family.name}: a reserved label"


SUFFIXES = ("total", "count", "sum", "bucket", "info", "created", "gcount", "gsum")
OTHER_UNITS = ("ms", "us", "ns", "s", "sec", "milliseconds", "minutes", "hours", "days", "kb", "mb", "percent")


def test_the_check_of_the_conventions_can_fail() -> None:
    wrong = '# HELP dstack_total How many.\n# TYPE dstack_total gauge\ndstack_total{job="x"} 1\n'

    (family,) = text_string_to_metric_families(wrong)

    assert len(list(problems_of(family))) == 2


def test_a_kind_of_wait_adds_no_metric() -> None:
    attack = 'x"} 1\ndstack_up 0\n# HELP \\' + HOSTILE

    with urllib.request.urlopen(serve("0", lambda: Figures(is_up=True, waits={attack: 7})), timeout=5) as response:
        text = response.read().decode()

    samples = {one.name: one for family in text_string_to_metric_families(text) for one in family.samples}
    assert samples["dstack_waits"].labels == {"kind": attack}
    assert samples["dstack_up"].value == 1


def test_metrics_are_served_on_this_host_only_by_default() -> None:
    assert serve("0", Figures).startswith("http://127.0.0.1:")
    assert serve("0.0.0.0:0", Figures).startswith("http://0.0.0.0:")


def test_a_port_in_use_is_an_error() -> None:
    port = re.findall(r":(\d+)/", serve("0", Figures))[0]

    with pytest.raises(UsageError, match=rf"Cannot serve metrics at 127\.0\.0\.1:{port}: Address already in use"):
        serve(port, Figures)


@pytest.mark.parametrize("place", ["", "x", "80000", "host:", "-1"])
def test_a_malformed_port_is_an_error(place: str) -> None:
    with pytest.raises(UsageError, match="is not a port"):
        serve(place, Figures)


def test_metrics_without_their_package_say_which_extra_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "dstack.watch.metrics")

    with pytest.raises(UsageError, match="needs the package prometheus_client") as raised:
        ClusterWatch(WatchSettings(address=None, directory=""))._serve_metrics("0")
    assert raised.value.remedy == "Install it: pip install 'ray-dstack[metrics]'"
