"""Whether hosts are reachable, by a TCP connection: far sooner than the timeouts of requests to them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from dstack.probes.connection.background import begin

Address = tuple[str, int]
CONNECT_TIMEOUT_S = 2.0
"""Enough for a lost first packet, which Linux sends again after 1 s."""
MAX_AT_ONCE = 256
"""The most connections at the same time."""


def unreachable(raylets: Mapping[str, Address], timeout_s: float = CONNECT_TIMEOUT_S) -> dict[str, str]:
    """The reason, by node id, for each node whose raylet accepts no TCP connection.

    The kernel accepts connections also for a stopped process, so a timeout means that the host or network is down.
    """
    reasons = begin(lambda: asyncio.run(_try_all(raylets, timeout_s))).result()
    return {node_id: reason for node_id, reason in zip(raylets, reasons, strict=True) if reason}


async def _try_all(raylets: Mapping[str, Address], timeout_s: float) -> list[str | None]:
    gate = asyncio.Semaphore(MAX_AT_ONCE)

    async def try_one(host: str, port: int) -> str | None:
        async with gate:
            return await _objection(host, port, timeout_s)

    return await asyncio.gather(*(try_one(host, port) for host, port in raylets.values()))


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
