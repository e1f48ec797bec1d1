"""Many concurrent gRPC calls, each with a deadline; failures are values."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import grpc

from dstack.observed.node import Cause
from dstack.probes.connection import ray_stubs
from dstack.probes.connection.background import begin
from dstack.probes.connection.connect import Metadata, open_aio_channel
from dstack.probes.connection.ray_protocol import protocol
from dstack.probes.node.core_worker_replies import explained
from dstack.probes.node.ray_messages import Unusable
from dstack.words import grouped

MAX_CONCURRENT = 256
GCS_IS_PASSIVE = 38
"""The status in a reply of a GCS that waits to take over from another one (Ray 2.60)."""
Service = tuple[str, str]
"""A service, and the generated module that has it, by its name without ``_pb2``."""
Request = tuple[Service, str, Callable[[], Any]]
"""A service, its method, and what makes the message."""


def gcs_service(name: str) -> Service:
    """A service of the GCS."""
    return f"{name}GcsService", "gcs_service"


KV = gcs_service("InternalKV")


@dataclass(frozen=True)
class UnaryCall:
    """One unary call to a method of a service of Ray; ``message`` makes the request, which this Ray may not have."""

    address: str
    service: Service
    method: str
    message: Callable[[], Any]
    timeout_s: float


@dataclass(frozen=True)
class CallFailure:
    """Why a call returned no reply."""

    reason: str
    cause: Cause = "other"


def call_all(calls: Sequence[UnaryCall], metadata: Metadata) -> list[Any]:
    """The replies, in order; a :class:`CallFailure` where there is none. Calls to one address share a channel.

    Runs on an event loop of its own, so it may be called from anywhere, also from inside another loop.
    """
    return asyncio.run_coroutine_threadsafe(_call_all(calls, metadata), _loop(os.getpid())).result()


@cache
def _loop(pid: int) -> asyncio.AbstractEventLoop:
    """One event loop for the life of a process, with gRPC initialised for as long.

    Otherwise gRPC shuts down after the last channel, in any thread, and prints errors if a loop runs in that thread.
    """
    loop = asyncio.new_event_loop()

    def run() -> None:
        asyncio.set_event_loop(loop)  # gRPC asks for this thread's
        grpc.aio.init_grpc_aio()
        loop.run_forever()

    begin(run)
    return loop


async def _call_all(calls: Sequence[UnaryCall], metadata: Metadata) -> list[Any]:
    gate = asyncio.Semaphore(MAX_CONCURRENT)
    replies: dict[int, Any] = {}
    at = grouped((call.address, index) for index, call in enumerate(calls))

    async def one(channel: grpc.aio.Channel, index: int) -> None:
        async with gate:
            replies[index] = await _call(channel, calls[index], metadata)

    async def to(address: str) -> None:
        async with open_aio_channel(address) as channel:
            await asyncio.gather(*(one(channel, index) for index in at[address]))

    await asyncio.gather(*map(to, at))
    return [replies[index] for index in range(len(calls))]


async def _call(channel: grpc.aio.Channel, call: UnaryCall, metadata: Metadata) -> Any:
    service, module = call.service
    if not protocol().has(service, call.method):
        return CallFailure(f"this Ray has no method {call.method} of {service}", "malformed")
    try:
        stub = getattr(getattr(ray_stubs, f"{module}_pb2_grpc"), f"{service}Stub")
        method, message = getattr(stub(channel), call.method), call.message()
    except (AttributeError, ValueError, TypeError) as error:
        return CallFailure(f"this Ray has no {call.method} as dstack knows it: {error}", "malformed")
    try:
        reply = await asyncio.wait_for(method(message, timeout=call.timeout_s, metadata=metadata), call.timeout_s + 0.5)
        if getattr(getattr(reply, "status", None), "code", 0) == GCS_IS_PASSIVE:
            return CallFailure("this head has become a standby")
        return protocol().checked(reply)
    except Unusable as error:
        return CallFailure(str(error), "malformed")
    except grpc.RpcError as error:
        return _explained(error, call)
    except asyncio.TimeoutError:
        return CallFailure(f"no answer within {call.timeout_s:.1f} s", "timeout")


def _explained(error: grpc.RpcError, call: UnaryCall) -> CallFailure:
    problem = explained(grpc.StatusCode, error, call.address, call.timeout_s)
    return CallFailure(problem.reason, problem.cause)
