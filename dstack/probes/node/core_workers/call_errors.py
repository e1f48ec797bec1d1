"""Why a gRPC call returned no reply."""

from __future__ import annotations

from typing import Any

from dstack.observed_node import Stage
from dstack.probes.node.reading import Problem

STAGE: Stage = "core worker"


def explained(codes: Any, error: Any, address: str, timeout_s: float) -> Problem:
    """The problem of a failed call; ``codes`` is ``grpc.StatusCode``."""
    code = error.code()
    if code == codes.DEADLINE_EXCEEDED:
        return timed_out(timeout_s)
    if code == codes.UNAVAILABLE:
        reason = f"nothing answers at {address}: the process has ended, or its network is down"
        return Problem(STAGE, reason, "unreachable")
    if code == codes.UNAUTHENTICATED:
        return Problem(STAGE, "it rejects the token", "permission")
    return Problem(STAGE, f"it returned the error {code.name.lower()}: {str(error.details())[:120]}")


def timed_out(timeout_s: float) -> Problem:
    """The problem of a call without a reply in time."""
    return Problem(STAGE, f"no answer within {timeout_s:.1f} s: stopped, overloaded, or its network is down", "timeout")
