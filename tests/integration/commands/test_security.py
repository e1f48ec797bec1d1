"""dstack's processes open no ports, and a cluster's token is in no output, command line or file."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from tests.clusters.dstack_command import DSTACK, Result, dstack
from tests.clusters.ray_clusters import Example, run_example
from tests.integration.commands.test_connect import KNOWS_TOKENS
from tests.processes import carrying, command_line, running, wait_until
from tests.tui.terminals import terminal

MINE = "DSTACK_TEST_FAMILY"
REMOTE = """
import sys, time
from dstack.probes.connection.connect import connect
from dstack.probes.ray_state.control_plane import take_inventory
from dstack.probes.ray_state.workers import questions
from dstack.probes.node_access.remote_probes import RemoteProbes
cluster = connect(sys.argv[1])
nodes = {node.node_id: {"workers": [], "targets": []} for node in take_inventory(cluster, 10).nodes}
options = {"native": False, "locals": False, "pause": False, "children": False}
options |= {"deadline_s": 60.0}
probes = RemoteProbes(cluster)
for node, result in probes.sample(nodes, questions((), 10.0), options, {}, time.monotonic() + 60):
    print("answer", type(result).__name__, getattr(result, "reason", ""), flush=True)
time.sleep(1000)
"""


class MonitoredFamily:
    """A family of processes whose open ports and command lines are recorded every 20 ms."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._tag = (MINE, uuid.uuid4().hex)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.environment = {**environment, MINE: self._tag[1]}
        self.listening: dict[str, set[tuple[str, int]]] = {}
        self.commands: set[str] = set()
        self.rounds = 0

    def _run(self) -> None:
        while not self._over.wait(0.02):
            for process in carrying(self._tag):
                command = " ".join(command_line(process))
                with contextlib.suppress(psutil.Error):
                    found = [one.laddr for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
                    self.commands.add(command)
                    if found:
                        self.listening.setdefault(command, set()).update((ip, port) for ip, port in found)
            self.rounds += 1

    def __enter__(self) -> MonitoredFamily:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        assert self.rounds > 3


@pytest.fixture(scope="module")
def hanging() -> Iterator[Example]:
    with run_example("two_actors", auth="on" if KNOWS_TOKENS else "off", token_in="environment") as example:
        yield example


def token_of(example: Example) -> str:
    return example.environment.get("RAY_AUTH_TOKEN", "this Ray has none")


def texts_below(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            if path.is_file() and path.stat().st_size < 50_000_000:
                yield path, path.read_bytes()


@pytest.mark.ray
def test_a_snapshot_opens_no_port_and_leaks_no_token(hanging: Example, tmp_path: Path) -> None:
    arguments = ["-v", "snapshot", "--address", hanging.address, "--locals", "--native", "--force"]
    arguments += ["-o", str(tmp_path / "s.json")]
    runs: list[Result] = []
    with MonitoredFamily(hanging.environment) as family:

        def is_pyspy_recorded() -> bool:
            """A run of py-spy is so short that not every run is recorded."""
            runs.append(dstack(*arguments, environment=family.environment))
            return any("py-spy" in command for command in family.commands.copy())

        wait_until(is_pyspy_recorded, deadline_s=90, what=lambda: f"py-spy in {family.commands}")

    assert [(done.returncode, done.stderr) for done in runs if done.returncode] == []
    assert family.listening == {}
    token = token_of(hanging)
    assert token not in "".join(done.stdout + done.stderr for done in runs) + (tmp_path / "s.json").read_text()
    assert not [command for command in family.commands if token in command]


@pytest.mark.ray
def test_a_watch_opens_only_its_metrics_port_and_leaks_no_token(hanging: Example, tmp_path: Path) -> None:
    for metrics in ([], ["--metrics", "0"]):
        folder = tmp_path / f"files-{len(metrics)}"
        command = [*DSTACK, "watch", "--address", hanging.address, "--dir", str(folder), "--every", "0.3"]
        command += ["--stuck-after", "0.5", "--share", "100", "--json", "--on-finding", "cat", *metrics]
        with (
            MonitoredFamily(hanging.environment) as family,
            running(command, family.environment, folder.with_suffix(".log")) as watch,
        ):
            wait_until(lambda: '"event":"command"' in watch.log.read_text(), deadline_s=60, what=watch.__str__)

        places = {place for found in family.listening.values() for place in found}
        assert [ip for ip, _ in places] == ["127.0.0.1"] * (len(metrics) // 2)
        assert any("dstack.collecting.capture" in one for one in family.commands), "the family was recorded"
        assert not [one for one in family.commands if token_of(hanging) in one]
        assert token_of(hanging) not in watch.log.read_text()
        files = list(folder.iterdir())
        assert files
        assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


@pytest.mark.ray
def test_the_terminal_ui_opens_no_port(hanging: Example) -> None:
    with (
        MonitoredFamily(hanging.environment) as family,
        terminal([*DSTACK, "tui", "--address", hanging.address], family.environment) as screen,
    ):
        screen.wait_for("DEADLOCK")
        screen.wait_for("Confirmed by 2 samples")
        screen.press("q")
        screen.wait_for("ended 0")

    assert family.listening == {}
    assert any("dstack.collecting.capture" in one for one in family.commands), "the family was recorded"
    assert not [one for one in family.commands if token_of(hanging) in one]


@pytest.mark.ray
def test_only_rays_driver_opens_ports_if_there_are_other_nodes(hanging: Example, tmp_path: Path) -> None:
    with (
        MonitoredFamily(hanging.environment) as family,
        running([sys.executable, "-c", REMOTE, hanging.address], family.environment, tmp_path / "log") as program,
    ):
        assert "NodeAnswer" in program.wait_for_line("answer", deadline_s=90)
        wait_until(lambda: family.listening, deadline_s=20, what=lambda: "an open port of Ray's driver")

    (command,) = family.listening
    assert "dstack.probes.node_access.remote_driver" in command
    assert [ip for ip, _ in family.listening[command]] == ["::"], "as every driver and worker of Ray does"
    assert not [command for command in family.commands if token_of(hanging) in command]
    assert token_of(hanging) not in program.log.read_text()


@pytest.mark.ray
@pytest.mark.skipif(not KNOWS_TOKENS, reason="this version of Ray has no token authentication")
def test_a_rejected_token_is_in_no_error(hanging: Example) -> None:
    wrong = "0123456789abcdef" * 4

    done = dstack(
        "-v", "check", "--address", hanging.address, environment={**hanging.environment, "RAY_AUTH_TOKEN": wrong}
    )

    assert "rejects the token" in done.stderr
    assert "Traceback" in done.stderr
    assert wrong not in done.stderr + done.stdout


@pytest.mark.ray
def test_a_token_is_in_no_file_of_the_cluster(hanging: Example) -> None:
    """The last test of this module, so that dstack's driver and its actors have written their logs."""
    texts = dict(texts_below(hanging.log.parent))

    assert any("core-driver" in path.name for path in texts), "the logs were read"
    assert not [path for path, text in texts.items() if token_of(hanging).encode() in text]
