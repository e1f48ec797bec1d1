"""Network addresses are joined, split and compared, for IPv4 and IPv6."""

from __future__ import annotations

import socket

import pytest

from dstack.model.snapshot import Node
from dstack.probes.connection.hosts import ahead_s, canonical, clock_notes, join_address, split_address, unreachable


@pytest.mark.parametrize(
    ("host", "port", "address"),
    [
        ("10.0.0.1", 6379, "10.0.0.1:6379"),
        ("head.example", 1, "head.example:1"),
        ("::1", 6379, "[::1]:6379"),
        ("2001:db8::2", 65535, "[2001:db8::2]:65535"),
        ("fe80::1%eth0", 6379, "[fe80::1%eth0]:6379"),
    ],
)
def test_joined_addresses_can_be_split(host: str, port: int, address: str) -> None:
    assert join_address(host, port) == address
    assert split_address(address) == (host, port)


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":6379", "host:0", "host:65536", "host:x", "::1", "::1:6379", "[::1]", "[::1:6379"]
)
def test_malformed_addresses_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        split_address(text)


@pytest.mark.parametrize(
    ("host", "spelling"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:DB8:0:0::2", "2001:db8::2"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("head.example", "head.example"),
        ("", ""),
    ],
)
def test_each_host_has_one_spelling(host: str, spelling: str) -> None:
    assert canonical(host) == spelling


@pytest.mark.parametrize(
    ("theirs", "expected"),
    [
        ((100.5, 101.5), 0.0),
        ((98.0, 99.0), -2.0),
        ((104.0, 105.0), 3.0),
        ((101.9, 101.9), 0.0),
        ((3700.0, 3702.0), 3600.0),
    ],
)
def test_the_round_trip_is_subtracted_from_a_clock_difference(theirs: tuple[float, float], expected: float) -> None:
    assert ahead_s(theirs, asked_at=100.0, answered_at=102.0) == expected


def test_a_note_names_the_host_and_its_clock_difference() -> None:
    nodes = [Node("a", "10.0.0.1", clock_ahead_s=ahead) for ahead in (None, 0.0, 2.0, -61.2, 3600.0)]

    late, early = clock_notes(nodes)

    assert "10.0.0.1 is 61 s behind the clock of this host" in late
    assert "10.0.0.1 is 3600 s ahead of the clock of this host" in early


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
