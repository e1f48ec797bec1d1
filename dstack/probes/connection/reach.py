"""Whether hosts can be reached at all, which is known long before everything that waits for their answer gives up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from dstack.probes.connection.background import begin

Address = tuple[str, int]
CONNECT_TIMEOUT_S = 2.0
"""Long enough for a lost first packet, which Linux sends again after 1 s."""


def unreachable(raylets: Mapping[str, Address], timeout_s: float = CONNECT_TIMEOUT_S) -> dict[str, str]:
    """Why no TCP connection to a node's raylet comes about, by node id, for those nodes where none does.

    The kernel accepts connections also for a process that is stopped, so one that times out is a host or network gone.
    """
    reasons = begin(lambda: asyncio.run(_try_all(raylets, timeout_s))).result()
    return {node_id: reason for node_id, reason in zip(raylets, reasons, strict=True) if reason}


async def _try_all(raylets: Mapping[str, Address], timeout_s: float) -> list[str | None]:
    return await asyncio.gather(*(_objection(host, port, timeout_s) for host, port in raylets.values()))


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
