"""Why a gRPC call returned no reply, as text and as one of :data:`dstack.model.Cause`."""

from __future__ import annotations

from typing import Any


def explained(codes: Any, error: Any, address: str, timeout_s: float) -> tuple[str, str]:
    """The reason and the cause of a failed call; ``codes`` is ``grpc.StatusCode``."""
    code = error.code()
    if code == codes.DEADLINE_EXCEEDED:
        return explained_timeout(timeout_s)
    if code == codes.UNAVAILABLE:
        return f"nothing answers at {address}: the process has ended, or its network is down", "unreachable"
    if code == codes.UNAUTHENTICATED:
        return "it rejects the token", "permission"
    return f"it returned the error {code.name.lower()}: {str(error.details())[:120]}", "other"


def explained_timeout(timeout_s: float) -> tuple[str, str]:
    """The reason and the cause if there was no reply in time."""
    return f"no answer within {timeout_s:.1f} s: stopped, overloaded, or its network is down", "timeout"
