"""Network addresses: joined, split and compared, IPv4 and IPv6 alike."""

from __future__ import annotations

import pytest

from dstack.probes.connection.addresses import canonical, join, split


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
    assert join(host, port) == address
    assert split(address) == (host, port)


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":6379", "host:0", "host:65536", "host:x", "::1", "::1:6379", "[::1]", "[::1:6379"]
)
def test_malformed_addresses_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        split(text)


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
