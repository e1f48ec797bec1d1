"""Requests to dstack's driver on the cluster and its replies, both as JSON (:mod:`dstack.child`)."""

from __future__ import annotations

from typing import TypedDict

import msgspec

from dstack.model import Model
from dstack.probes.node import wire
from dstack.probes.node_access.answers import MALFORMED, MalformedAnswer, NodeFailure, decoded


class Request(TypedDict):
    """Requests a sample of the ``targets``, by node id, until ``deadline``, a ``time.monotonic()``."""

    number: int
    targets: dict[str, list[wire.Target]]
    options: wire.Options
    deadline: float


class Reply(Model, frozen=True):
    """One node's answer to the request with that number, as JSON of its probe, or the failure."""

    number: int
    node_id: str
    answer: msgspec.Raw = msgspec.Raw()
    failure: NodeFailure | None = None

    def result(self) -> wire.Answer | NodeFailure:
        """The validated answer, or the failure, such as a malformed answer."""
        if self.failure is not None:
            return self.failure
        try:
            return decoded(self.answer)
        except MalformedAnswer:
            return MALFORMED
