"""The hosts of a cluster: their addresses as text, their clocks beside ours, and whether they are reachable."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from dstack.model.snapshot import Node
from dstack.probes.connection.background import begin

_ADDRESS = re.compile(r"(?:\[([^\[\]/]+)\]|([^\[\]:/]+)):(\d{1,5})")


def join_address(host: str, port: int) -> str:
    """``HOST:PORT``, or ``[HOST]:PORT`` where the host is an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
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


def ahead_s(theirs: Sequence[float], asked_at: float, answered_at: float) -> float:
    """By how many seconds at least their clock is ahead, negative if it is behind, 0 if it may be right.

    Ours are the times of request and reply; theirs are when they began and ended its work.
    """
    began_at, ended_at = theirs
    least, most = ended_at - answered_at, began_at - asked_at
    return round(least if least > 0 else min(most, 0.0), 3)


def clock_notes(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Notes on clocks that disagree."""
    return tuple(
        f"The clock of node {node.ip} is {abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the clock of this"
        " host. The ages of waits count only the time that dstack observed."
        for node in nodes
        if (ahead := node.clock_ahead_s or 0.0) and node.has_another_time
    )


RayletAddress = tuple[str, int]
CONNECT_TIMEOUT_S = 2.0
"""Enough for a lost first packet, which Linux sends again after 1 s."""
MAX_AT_ONCE = 256
"""The most connections at the same time."""


def unreachable(
    raylets: Mapping[str, RayletAddress], timeout_s: float = CONNECT_TIMEOUT_S, reached: set[str] | None = None
) -> dict[str, str]:
    """The reason, by node id, for each node whose raylet accepts no TCP connection.

    The kernel accepts connections also for a stopped process, so a timeout means that the host or network is down.
    A node is added to ``reached`` as soon as it has accepted one.
    """
    reasons = begin(lambda: asyncio.run(_try_all(raylets, timeout_s, set() if reached is None else reached))).result()
    return {node_id: reason for node_id, reason in zip(raylets, reasons, strict=True) if reason}


async def _try_all(raylets: Mapping[str, RayletAddress], timeout_s: float, reached: set[str]) -> list[str | None]:
    gate = asyncio.Semaphore(MAX_AT_ONCE)

    async def try_one(node_id: str) -> str | None:
        async with gate:
            objection = await _objection(*raylets[node_id], timeout_s)
        if objection is None:
            reached.add(node_id)
        return objection

    return await asyncio.gather(*map(try_one, raylets))


async def _objection(host: str, port: int, timeout_s: float) -> str | None:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), timeout_s)
    except asyncio.TimeoutError:
        return "no connection: the host or its network is down"
    except ConnectionRefusedError:
        return "the connection was refused: its raylet has ended"
    except OSError as error:
        return f"no connection: {error.strerror or error}"
    writer.close()
    return None
