"""The time that one sample of a cluster may take."""

from __future__ import annotations

import time
from dataclasses import dataclass

RPC_TIMEOUT_S = 3.0
AGENTS_SHARE = 0.08
"""The part of a sample's time that is reserved for Ray's agents, which read unreadable processes."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Sample number ``sample``, counted from 1, from ``began`` to ``deadline``, both of ``time.monotonic()``."""

    sample: int
    began: float
    deadline: float

    @classmethod
    def of(cls, sample: int, seconds: float) -> Budget:
        """A sample that begins now."""
        began = time.monotonic()
        return cls(sample, began, began + seconds)

    def rpc_timeout_s(self) -> float:
        """The timeout of an RPC that is sent now."""
        return max(0.1, min(RPC_TIMEOUT_S, self.deadline - time.monotonic()))

    @property
    def processes_until(self) -> float:
        """The deadline for reading processes."""
        return self.deadline - (self.deadline - self.began) * AGENTS_SHARE
