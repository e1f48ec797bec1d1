"""What dstack's driver on the cluster is asked, and what it replies; both as JSON (:mod:`dstack.child`)."""

from __future__ import annotations

from typing import TypedDict

import msgspec

from dstack.model import Model
from dstack.probes.node import wire
from dstack.probes.node_access.answers import MALFORMED, MalformedAnswer, NodeFailure, decoded


class Request(TypedDict):
    """A sample of the processes in ``targets``, which are by node id, until ``deadline``, a ``time.monotonic()``."""

    number: int
    targets: dict[str, list[wire.Target]]
    options: wire.Options
    deadline: float


class Reply(Model, frozen=True):
    """One node's answer to the request with that number, as the JSON that its probe gave, or why there is none."""

    number: int
    node_id: str
    answer: msgspec.Raw = msgspec.Raw()
    failure: NodeFailure | None = None

    def result(self) -> wire.Answer | NodeFailure:
        """The validated answer, or the failure; a malformed answer is one."""
        if self.failure is not None:
            return self.failure
        try:
            return decoded(self.answer)
        except MalformedAnswer:
            return MALFORMED
