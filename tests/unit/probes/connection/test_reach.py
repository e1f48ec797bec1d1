"""Whether hosts can be reached at all, by IPv4 and IPv6."""

from __future__ import annotations

import socket

import pytest

from dstack.probes.connection.reach import unreachable

FAMILIES = pytest.mark.parametrize(
    ("host", "family"), [("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)], ids=["IPv4", "IPv6"]
)


@FAMILIES
def test_a_raylet_that_listens_is_reached(host: str, family: socket.AddressFamily) -> None:
    with socket.create_server((host, 0), family=family) as server:
        assert unreachable({"n": (host, server.getsockname()[1])}, timeout_s=30.0) == {}


@FAMILIES
def test_an_ended_raylet_is_not_reached(host: str, family: socket.AddressFamily) -> None:
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]

    assert "its raylet has ended" in unreachable({"n": (host, port)}, timeout_s=30.0)["n"]
