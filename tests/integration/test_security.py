"""What dstack's processes open to others, and where a cluster's token gets to: nowhere."""

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

from tests.clusters import Example, run_example
from tests.command import DSTACK, Result, dstack
from tests.integration.test_connect import KNOWS_TOKENS
from tests.processes import carrying, command_line, running, wait_until
from tests.tui.terminals import terminal

MINE = "DSTACK_TEST_FAMILY"
REMOTE = """
import sys, time
from dstack.probes.connection.connect import connect
from dstack.probes.ray_state.control_plane import take_inventory
from dstack.probes.node_access.remote_probes import RemoteProbes
cluster = connect(sys.argv[1])
nodes = {node.node_id: [] for node in take_inventory(cluster, 10).nodes}
options = {"native": False, "locals": False, "pause": False, "children": False}
options |= {"deadline_s": 60.0, "thread_context": None}
probes = RemoteProbes(cluster)
for node, result in probes.sample(nodes, options, {}, time.monotonic() + 60):
    print("answer", sorted(result) if isinstance(result, dict) else result.reason, flush=True)
time.sleep(1000)
"""


class Watched:
    """A family of processes, of which everything that listens and every command line is noted, again and again."""

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

    def __enter__(self) -> Watched:
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
def test_a_snapshot_listens_nowhere_and_tells_no_token(hanging: Example, tmp_path: Path) -> None:
    arguments = ["-v", "snapshot", "--address", hanging.address, "--locals", "--native", "--force"]
    arguments += ["-o", str(tmp_path / "s.json")]
    looks: list[Result] = []
    with Watched(hanging.environment) as watched:

        def is_seen_with_its_family() -> bool:
            """A run of py-spy is so short that it is not seen in every look."""
            looks.append(dstack(*arguments, environment=watched.environment))
            return any("py-spy" in command for command in watched.commands.copy())

        wait_until(is_seen_with_its_family, deadline_s=90, what=lambda: f"seen: {watched.commands}")

    assert [(done.returncode, done.stderr) for done in looks if done.returncode] == []
    assert watched.listening == {}
    token = token_of(hanging)
    assert token not in "".join(done.stdout + done.stderr for done in looks) + (tmp_path / "s.json").read_text()
    assert not [command for command in watched.commands if token in command]


@pytest.mark.ray
def test_a_watch_listens_only_where_it_is_asked_to_and_tells_no_token(hanging: Example, tmp_path: Path) -> None:
    for metrics in ([], ["--metrics", "0"]):
        folder = tmp_path / f"files-{len(metrics)}"
        command = [*DSTACK, "watch", "--address", hanging.address, "--dir", str(folder), "--every", "0.3"]
        command += ["--stuck-after", "0.5", "--share", "100", "--json", "--on-finding", "cat", *metrics]
        with (
            Watched(hanging.environment) as watched,
            running(command, watched.environment, folder.with_suffix(".log")) as watch,
        ):
            wait_until(lambda: '"event":"command"' in watch.log.read_text(), deadline_s=60, what=watch.__str__)

        places = {place for found in watched.listening.values() for place in found}
        assert [ip for ip, _ in places] == ["127.0.0.1"] * (len(metrics) // 2)
        assert any("dstack.collector" in one for one in watched.commands), "the family was seen"
        assert not [one for one in watched.commands if token_of(hanging) in one]
        assert token_of(hanging) not in watch.log.read_text()
        files = list(folder.iterdir())
        assert files
        assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


@pytest.mark.ray
def test_the_terminal_ui_listens_nowhere(hanging: Example) -> None:
    with (
        Watched(hanging.environment) as watched,
        terminal([*DSTACK, "tui", "--address", hanging.address], watched.environment) as screen,
    ):
        screen.wait_for("DEADLOCK")
        screen.wait_for("Confirmed by 2 samples")
        screen.press("q")
        screen.wait_for("ended 0")

    assert watched.listening == {}
    assert any("dstack.collector" in one for one in watched.commands), "the family was seen"
    assert not [one for one in watched.commands if token_of(hanging) in one]


@pytest.mark.ray
def test_only_rays_own_driver_listens_where_there_are_other_nodes(hanging: Example, tmp_path: Path) -> None:
    with (
        Watched(hanging.environment) as watched,
        running([sys.executable, "-c", REMOTE, hanging.address], watched.environment, tmp_path / "log") as program,
    ):
        assert "'processes'" in program.wait_for_line("answer", deadline_s=90)
        wait_until(lambda: watched.listening, deadline_s=20, what=lambda: "Ray's driver to listen")

    (command,) = watched.listening
    assert "dstack.probes.node_access.remote_driver" in command
    assert [ip for ip, _ in watched.listening[command]] == ["::"], "as every driver and worker of Ray does"
    assert not [command for command in watched.commands if token_of(hanging) in command]
    assert token_of(hanging) not in program.log.read_text()


@pytest.mark.ray
@pytest.mark.skipif(not KNOWS_TOKENS, reason="this version of Ray has no token authentication")
def test_a_refused_token_is_in_no_error(hanging: Example) -> None:
    wrong = "0123456789abcdef" * 4

    done = dstack(
        "-v", "check", "--address", hanging.address, environment={**hanging.environment, "RAY_AUTH_TOKEN": wrong}
    )

    assert "rejects the token" in done.stderr
    assert "Traceback" in done.stderr
    assert wrong not in done.stderr + done.stdout


@pytest.mark.ray
def test_a_token_is_in_no_file_of_the_cluster(hanging: Example) -> None:
    """Last of all here: what dstack's driver and its actors have logged is there by now."""
    texts = dict(texts_below(hanging.log.parent))

    assert any("core-driver" in path.name for path in texts), "the logs were seen"
    assert not [path for path, text in texts.items() if token_of(hanging).encode() in text]
