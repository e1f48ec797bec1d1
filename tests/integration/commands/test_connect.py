"""dstack finds the cluster, or reports the reason and the remedy within seconds."""

import importlib.util
import os
import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

from dstack.errors import ClusterError
from dstack.probes.connection.connect import Cluster, connect
from dstack.probes.ray_state.control_plane import take_inventory
from tests.clusters.dstack_command import Result, check, dstack, elapsed_s, settled_check
from tests.clusters.ray_clusters import Example, ray_cluster, run_example
from tests.processes import running, wait_until

KNOWS_STANDBYS = "is_leader" in gcs_service_pb2.CheckAliveReply.DESCRIPTOR.fields_by_name
KNOWS_TOKENS = importlib.util.find_spec("ray._private.authentication") is not None
MAX_DURATION_S = 20.0
"""Far less than Ray's own timeout, and far more than dstack needs on an idle machine."""


def error_of(*arguments: str, environment: dict[str, str] | None = None) -> str:
    """The error message of a check, which must be short, quick and have exit code 3."""
    result, took_s = elapsed_s(lambda: dstack("check", *arguments, environment=environment))
    assert result.returncode == 3, result
    assert took_s < MAX_DURATION_S
    assert not result.stdout
    return message_of(result)


def message_of(result: Result) -> str:
    lines = result.stderr.strip().splitlines()
    assert lines[0].startswith("Error: ")
    assert len(lines) == 2, "one sentence and its remedy"
    return result.stderr


@contextmanager
def listener(answer: bytes | None) -> Iterator[str]:
    """A port that accepts; it sends ``answer`` and closes, or it never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                if answer is None:
                    kept.append(connection)
                else:
                    connection.sendall(answer)
                    connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        for connection in kept:
            connection.close()


@dataclass(frozen=True)
class Gcs(
    gcs_service_pb2_grpc.NodeInfoGcsServiceServicer,  # type: ignore[misc]
    gcs_service_pb2_grpc.InternalKVGcsServiceServicer,  # type: ignore[misc]
):
    """The part of a GCS that says who it is; ``leads`` is None if it says nothing about that."""

    version: str = "2.60.0"
    leads: bool | None = None
    cluster_id: bytes = b"one"
    dashboard: str = ""
    token: str | None = None

    def CheckAlive(self, request: Any, context: Any) -> Any:
        if self.token and ("authorization", f"Bearer {self.token}") not in context.invocation_metadata():
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")
        reply = gcs_service_pb2.CheckAliveReply(ray_version=self.version)
        if self.leads is not None:
            reply.is_leader = self.leads
        return reply

    def GetClusterId(self, request: Any, context: Any) -> Any:
        return gcs_service_pb2.GetClusterIdReply(cluster_id=self.cluster_id)

    def InternalKVGet(self, request: Any, context: Any) -> Any:
        return gcs_service_pb2.InternalKVGetReply(value=self.dashboard.encode())


@contextmanager
def serving(gcs: Gcs, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    gcs_service_pb2_grpc.add_NodeInfoGcsServiceServicer_to_server(gcs, server)
    gcs_service_pb2_grpc.add_InternalKVGcsServiceServicer_to_server(gcs, server)
    port = server.add_insecure_port(f"{host}:{port}")
    server.start()
    yield f"{host}:{port}"
    server.stop(0).wait()


def test_an_address_without_a_listener_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    assert "the connection was refused" in error_of("--address", f"127.0.0.1:{port}")


def test_a_port_of_another_program_is_reported() -> None:
    with listener(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        assert "does not answer as a Ray GCS" in error_of("--address", address)


def test_a_port_that_accepts_and_never_answers_is_reported() -> None:
    with listener(None) as address:
        assert "did not answer within" in error_of("--address", address)


def test_an_unknown_host_is_reported() -> None:
    assert "cannot be resolved" in error_of("--address", "no-such-host.invalid:6379")


@pytest.mark.parametrize("version", ["2.45.0", "1.13.0"])
def test_an_unsupported_version_is_reported(version: str) -> None:
    with serving(Gcs(version)) as address:
        assert f"runs Ray {version}; dstack supports 2.46 and later" in error_of("--address", address)


@pytest.mark.parametrize("version", ["2.61.0", "3.0.0", ""])
def test_a_newer_version_is_not_refused(version: str) -> None:
    with serving(Gcs(version)) as address:
        assert connect(address).ray_version == version


def test_a_gcs_on_ipv6_is_found() -> None:
    with serving(Gcs(), host="[::1]") as address:
        assert connect(address).address == address


@pytest.mark.parametrize("mode", [None, "disabled", "token"])
@pytest.mark.parametrize("wanted", [None, "made by Ray"])
def test_the_token_of_a_file_is_for_the_clusters_that_want_it_whatever_the_mode(
    wanted: str | None, mode: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From Ray 2.59 on, the file alone turns tokens on; a cluster that was started before it was there wants none."""
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray/auth_token").write_text("made by Ray")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    if mode:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)

    with serving(Gcs(token=wanted)) as address:
        assert connect(address).token == wanted


STANDBY = "127.0.0.1"
LEADER = "127.0.0.2"


@pytest.mark.skipif(not KNOWS_STANDBYS, reason="this version of Ray has no standby heads")
def test_a_standby_leads_to_its_leader() -> None:
    with serving(Gcs(leads=False, dashboard=f"{LEADER}:8265"), STANDBY) as standby:
        port = int(standby.rpartition(":")[2])
        with serving(Gcs(leads=True), LEADER, port) as leader:
            cluster = connect(standby)
            direct = connect(leader)

    assert (cluster.address, direct.address) == (leader, leader)
    (note,) = cluster.notes
    assert standby in note
    assert leader in note
    assert direct.notes == ()


@pytest.mark.skipif(not KNOWS_STANDBYS, reason="this version of Ray has no standby heads")
@pytest.mark.parametrize(
    ("dashboard", "there"),
    [
        ("", Gcs(leads=True)),
        (f"{STANDBY}:8265", Gcs(leads=True)),
        (f"{LEADER}:8265", Gcs(leads=False)),
        (f"{LEADER}:8265", Gcs(leads=True, cluster_id=b"another")),
        (f"{LEADER}:8265", None),
    ],
    ids=["no address", "its own address", "another standby", "another cluster", "nothing there"],
)
def test_a_standby_without_a_known_leader_is_an_error(dashboard: str, there: Gcs | None) -> None:
    with ExitStack() as stack:
        standby = stack.enter_context(serving(Gcs(leads=False, dashboard=dashboard), STANDBY))
        if there is not None:
            stack.enter_context(serving(there, LEADER, int(standby.rpartition(":")[2])))
        with pytest.raises(ClusterError, match="is a standby") as raised:
            connect(standby)

    assert standby in raised.value.message
    assert "--address" in (raised.value.remedy or "")


class Store(socketserver.BaseRequestHandler):
    """The part of Redis that a standby reads: the id of the cluster, which its leader has written."""

    request: socket.socket

    def handle(self) -> None:
        lines = self.request.makefile("rb")
        while header := lines.readline():
            words = [lines.read(int(lines.readline()[1:]) + 2)[:-2] for _ in range(int(header[1:]))]
            self.request.sendall(self.reply(words))

    def reply(self, words: list[bytes]) -> bytes:
        match words[0]:
            case b"HGET" if words[2].endswith(b":ray_cluster_id"):
                return b"$28\r\n" + b"c" * 28 + b"\r\n"
            case b"HGET":
                return b"$-1\r\n"
            case b"INFO":
                return b"$0\r\n\r\n"
            case b"DEL":
                return b":0\r\n"
            case _:
                return b"+PONG\r\n"


@contextmanager
def real_standby(directory: Path) -> Iterator[str]:
    """Ray's own GCS as the standby of a leader that is elsewhere."""
    ray = importlib.util.find_spec("ray")
    assert ray is not None
    assert ray.origin is not None
    program = Path(ray.origin).parent / "core/src/ray/gcs/gcs_server"
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Store) as store, socket.create_server(("", 0)) as free:
        store.daemon_threads = True
        threading.Thread(target=store.serve_forever, daemon=True).start()
        port = free.getsockname()[1]
        free.close()
        options = {
            "gcs_server_port": port,
            "node_ip_address": STANDBY,
            "node_id": "ab" * 28,
            "redis_address": "127.0.0.1",
            "redis_port": store.server_address[1],
            "session_name": "session",
            "session_dir": directory,
            "log_dir": directory,
            "config_list": "e30=",
        }
        command = [str(program), *(f"--{name}={value}" for name, value in options.items())]
        environment = {**os.environ, "RAY_ENABLE_GCS_LEADER_ELECTION": "1", "RAY_AUTH_MODE": "disabled"}
        with running(command, environment, directory / "gcs.log"):
            wait_until(lambda: listens(port), deadline_s=60.0, what=lambda: (directory / "gcs.log").read_text()[-3000:])
            yield f"{STANDBY}:{port}"
        store.shutdown()


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((STANDBY, port)) == 0


@pytest.mark.skipif(not KNOWS_STANDBYS, reason="this version of Ray has no standby heads")
def test_a_real_standby_is_told_apart_and_answers_no_other_question(tmp_path: Path) -> None:
    with real_standby(tmp_path) as standby:
        message = error_of("--address", standby)
        with pytest.raises(ClusterError) as raised:
            take_inventory(Cluster(standby, "2.60.0"), 5.0)

    assert f"The head at {standby} is a standby" in message
    assert "become a standby" in raised.value.message


def test_an_ipv6_address_without_a_listener_is_reported() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as free:
        port = free.getsockname()[1]

    assert f"Nothing listens on [::1]:{port}" in error_of("--address", f"[::1]:{port}")


def test_the_environment_names_the_address() -> None:
    with listener(b"no") as address:
        assert address in error_of(environment={**os.environ, "RAY_ADDRESS": address})


@pytest.mark.parametrize(
    "address", ["nonsense", "host", "host:port", "host:99999", "::1:6379", "ray://127.0.0.1:10001"]
)
def test_a_malformed_address_is_a_usage_error(address: str) -> None:
    result = dstack("check", "--address", address)

    assert result.returncode == 2
    message_of(result)


@pytest.mark.ray
@pytest.mark.exhaustive
def test_a_token_that_ray_made_is_found() -> None:
    with run_example("two_actors") as example:
        assert_cluster_is_read(example)


def assert_cluster_is_read(example: Example) -> None:
    """Check its cluster by address and by variable, without a variable for authentication."""
    environment = {name: value for name, value in example.environment.items() if name != "RAY_AUTH_MODE"}
    explicit = dstack("check", "--address", example.address, environment=environment)
    by_variable = dstack("check", environment={**environment, "RAY_ADDRESS": example.address})

    assert explicit.returncode in (0, 1, 4), explicit.stderr
    assert by_variable.returncode in (0, 1, 4), by_variable.stderr


@pytest.mark.exhaustive
@pytest.mark.ray
@pytest.mark.skipif(not KNOWS_TOKENS, reason="this version of Ray has no token authentication")
def test_a_token_is_found_in_each_place_and_a_wrong_or_missing_token_is_reported(tmp_path: Path) -> None:
    with ray_cluster(auth="on", token_in="environment") as cluster:
        right = dict(cluster.environment)
        file = tmp_path / ".ray" / "auth_token"
        file.parent.mkdir()
        file.write_text(right["RAY_AUTH_TOKEN"])
        wrong = {**right, "RAY_AUTH_TOKEN": "0" * 64}
        none = {name: value for name, value in right.items() if name != "RAY_AUTH_TOKEN"}

        assert "rejects the token" in error_of("--address", cluster.address, environment=wrong)
        assert "none was found" in error_of("--address", cluster.address, environment=none)
        unnamed = {name: value for name, value in none.items() if name != "RAY_AUTH_MODE"}
        for token in (
            {"RAY_AUTH_TOKEN": right["RAY_AUTH_TOKEN"]},
            {"RAY_AUTH_TOKEN_PATH": str(file)},
            {"HOME": str(tmp_path)},
        ):
            environment = {**unnamed, **token}
            assert check(cluster.address, environment)["verdict"] == "idle"
            assert dstack("check", environment={**environment, "RAY_ADDRESS": cluster.address}).returncode == 0


@pytest.mark.ray
@pytest.mark.exhaustive
def test_auto_selects_the_only_cluster_and_asks_if_there_are_several() -> None:
    with run_example("polling", auth="off") as one:
        assert_cluster_is_read(one)
        with run_example("polling", auth="off") as other:
            message = error_of("--address", "auto", environment=dict(one.environment))

    assert one.address in message
    assert other.address in message
    assert "--address HOST:PORT" in message


def tls_variables(folder: Path) -> dict[str, str]:
    """Ray's TLS variables for a new self-signed certificate."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    names = f"subjectAltName=DNS:localhost,IP:127.0.0.1,IP:{own_address()}"
    openssl = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=ray"]
    subprocess.run(
        [*openssl, "-addext", names, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True
    )
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(certificate),
        "RAY_TLS_SERVER_KEY": str(key),
        "RAY_TLS_CA_CERT": str(certificate),
    }


def own_address() -> str:
    """The address that Ray gives this machine: that of the interface with the default route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("8.8.8.8", 80))  # a datagram socket sends nothing when it connects
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


@pytest.mark.ray
@pytest.mark.exhaustive
def test_tls_follows_rays_own_variables(tmp_path: Path) -> None:
    variables = tls_variables(tmp_path)
    with run_example("two_actors", variables=variables) as example:
        plain = {name: value for name, value in example.environment.items() if name not in variables}

        with_tls = settled_check(
            example.address, example.environment, lambda document: document["verdict"] == "deadlock"
        )
        without = error_of("--address", example.address, environment=plain)
        unreadable = error_of(
            "--address", example.address, environment={**example.environment, "RAY_TLS_SERVER_CERT": "/nowhere"}
        )

    assert with_tls["exit_code"] == 1
    assert with_tls["coverage"]["failures"] == []
    assert "if the cluster uses TLS" in without
    assert "certificates cannot be read" in unreadable
