"""dstack finds the cluster, or reports the reason and the remedy within seconds."""

import importlib.util
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

from dstack.probes.connection.connect import connect
from tests.clusters.dstack_command import Result, check, dstack, elapsed_s, settled_check
from tests.clusters.ray_clusters import Example, ray_cluster, run_example

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


class Gcs(gcs_service_pb2_grpc.NodeInfoGcsServiceServicer):  # type: ignore[misc]
    """The part of a GCS that gives its version."""

    def __init__(self, version: str) -> None:
        self.version = version

    def CheckAlive(self, request: Any, context: Any) -> Any:
        return gcs_service_pb2.CheckAliveReply(ray_version=self.version)


@contextmanager
def gcs_of_version(version: str, host: str = "127.0.0.1") -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    gcs_service_pb2_grpc.add_NodeInfoGcsServiceServicer_to_server(Gcs(version), server)
    port = server.add_insecure_port(f"{host}:0")
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
    with gcs_of_version(version) as address:
        assert f"runs Ray {version}; dstack supports 2.46 and later" in error_of("--address", address)


@pytest.mark.parametrize("version", ["2.61.0", "3.0.0", ""])
def test_a_newer_version_is_not_refused(version: str) -> None:
    with gcs_of_version(version) as address:
        assert connect(address).ray_version == version


def test_a_gcs_on_ipv6_is_found() -> None:
    with gcs_of_version("2.60.0", host="[::1]") as address:
        assert connect(address).address == address


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
