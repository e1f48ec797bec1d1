"""Network addresses as text: ``HOST:PORT``, with an IPv6 host in brackets, as gRPC and Ray write them."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache

_ADDRESS = re.compile(r"(?:\[([^\[\]/]+)\]|([^\[\]:/]+)):(\d{1,5})")


def join(host: str, port: int) -> str:
    """``HOST:PORT``, or ``[HOST]:PORT`` where the host is an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(address: str) -> tuple[str, int]:
    """The host, without brackets, and the port of an address. Raises ``ValueError``."""
    match = _ADDRESS.fullmatch(address)
    if not match or not 0 < int(match[3]) < 65536:
        raise ValueError(f"{address!r} is not HOST:PORT")
    return match[1] or match[2], int(match[3])


@lru_cache(16_384)
def canonical(host: str) -> str:
    """The one spelling of an IP address by which hosts are compared; a host name unchanged."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return host
    return str(getattr(ip, "ipv4_mapped", None) or ip)
