"""The child process that records on other nodes: like :mod:`remote_driver`, but it requests round after round itself.

So a slow node delays no other one. Receives ``record`` messages, and sends a ``reply`` for each round of each node; see
:mod:`dstack.probes.node_access.driver_messages`.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import ray

from dstack.probes.node import wire
from dstack.probes.node_access.answers import MALFORMED, NodeFailure
from dstack.probes.node_access.driver_messages import RecordRequest, RoundReply, encoded
from dstack.probes.node_access.remote_driver import TURN_S, Probes, first_line, joins
from dstack.processes.child import send

START_S = 20.0
"""How long a probe may take to start."""
LATE_S = 5.0
"""How long after its end a round is awaited."""


@dataclass(frozen=True, slots=True)
class _Step:
    """What a node is doing: its probe starts, or it records a round."""

    node_id: str
    deadline: float
    is_last: bool = False
    is_start: bool = False


class RecordingProbes(Probes):
    """Probes that record; each node has at most one round at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: dict[Any, _Step] = {}
        self._started: set[str] = set()
        self._over: set[str] = set()

    def record(self, requests: queue.Queue[RecordRequest | None]) -> Iterator[tuple[str, object, bool]]:
        """Node, round or failure, and whether that was its last, until all nodes have ended or the queue has.

        When a probe has started, its first result is None.
        """
        request = requests.get()
        while request is not None:
            busy = {step.node_id for step in self._steps.values()}
            for node_id in request["targets"].keys() - self._over - busy:
                self._begin_step(node_id, request)
            yield from self._proceed()
            if request["end"] and not self._steps and time.monotonic() > request["end"]:
                return
            while not requests.empty() and request is not None:
                request = requests.get()

    def _begin_step(self, node_id: str, request: RecordRequest) -> None:
        """Start the probe of an idle node, or its next round if the recording has begun."""
        now = time.monotonic()
        if node_id not in self._started:
            self._steps[self.begin(node_id)] = _Step(node_id, now + START_S, is_start=True)
        elif request["end"]:
            seconds = max(0.0, min(request["options"]["seconds"], request["end"] - now))
            is_last = now + seconds >= request["end"]
            options: wire.RecordOptions = {**request["options"], "seconds": seconds, "is_last": is_last}
            ref = self.actors[node_id].record.remote(request["targets"][node_id], options)
            self._steps[ref] = _Step(node_id, now + seconds + LATE_S, is_last)

    def _proceed(self) -> Iterator[tuple[str, object, bool]]:
        if not self._steps:
            time.sleep(TURN_S)
            return
        done, waiting = ray.wait(list(self._steps), timeout=TURN_S)
        for ref in done:
            step = self._steps.pop(ref)
            try:
                yield self._finished(step, ray.get(ref))
            except Exception as error:  # whatever a remote probe raises is that node's failure
                yield self._failed(step, NodeFailure(f"its probe failed: {first_line(error)}"))
        for ref in waiting:
            if time.monotonic() > self._steps[ref].deadline:
                step = self._steps.pop(ref)
                reason = "the start of its probe timed out" if step.is_start else "its probe timed out"
                yield self._failed(step, NodeFailure(reason, "timeout"))

    def _finished(self, step: _Step, value: Any) -> tuple[str, object, bool]:
        if step.is_start:
            self.equip(step.node_id, has_pyspy=bool(value))
            self._started.add(step.node_id)
            return step.node_id, None, False
        if step.is_last:
            self._over.add(step.node_id)
        return step.node_id, value, step.is_last

    def _failed(self, step: _Step, why: NodeFailure) -> tuple[str, object, bool]:
        self._over.add(step.node_id)
        return step.node_id, why, True


def main(answers: IO[bytes], arguments: list[str]) -> None:
    """Serves until all nodes have ended, or standard input has."""
    requests: queue.Queue[RecordRequest | None] = queue.Queue()
    if not joins(answers, arguments[0], requests):
        return
    for node_id, result, is_last in RecordingProbes().record(requests):
        send(answers, "reply", _reply(node_id, result, is_last=is_last))
    ray.shutdown()


def _reply(node_id: str, result: object, *, is_last: bool) -> bytes:
    """A :class:`RoundReply` as it is sent."""
    if isinstance(result, bytes):
        return encoded(RoundReply(node_id=node_id, round=result, is_last=is_last))
    failure = result if isinstance(result, NodeFailure) or result is None else MALFORMED
    return encoded(RoundReply(node_id=node_id, failure=failure, is_last=is_last))
