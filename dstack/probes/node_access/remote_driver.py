"""The child process that holds dstack's Ray connection; its argument is the address of the GCS.

Receives ``sample`` messages by standard input and answers with messages (:mod:`dstack.child`): ``joined`` when it has
joined the cluster, ``ended`` with the reason when it cannot, and ``reply`` for each node; see
:mod:`dstack.probes.node_access.driver_messages`. It ends with its parent, and its actors end with it.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import dstack.probes.node
from dstack.child import Messages, outlive_parent, send
from dstack.document_file import to_json
from dstack.probes.node import wire
from dstack.probes.node.probe_actor import IDLE_S, ProbeActor
from dstack.probes.node.pyspy.runner import find_pyspy
from dstack.probes.node_access.answers import MALFORMED, NodeFailure
from dstack.probes.node_access.driver_messages import Reply, Request, encoded
from dstack.probes.ray_state.control_plane import PROBE_NAMESPACE

END_GRACE_S = 0.8
"""How long an orderly end may take after standard input has closed."""
ANSWER_S = 0.3
"""How long before the deadline a probe must stop, so that its answer arrives in time."""
TURN_S = 0.05
"""How often a wait for nodes checks whether it was cancelled."""
MAX_STARTS = 256
"""The most probes that start at the same time."""
FORGOTTEN_S = IDLE_S - 5.0
"""How long an unused probe certainly lives."""


@dataclass(frozen=True, slots=True)
class _Step:
    """What a node is doing: its probe starts, or reads. A probe from an earlier request may have ended."""

    node_id: str
    is_start: bool
    is_old: bool = False


class Probes:
    """One probe actor for each requested node, kept between requests."""

    def __init__(self) -> None:
        ray.cloudpickle.register_pickle_by_value(dstack.probes.node)
        self.actors: dict[str, Any] = {}
        self._used_at: dict[str, float] = {}
        self._binary: Any = None

    def sample(self, request: Request, is_over: Callable[[], bool]) -> Iterator[tuple[str, bytes | NodeFailure]]:
        """The answers as they arrive, then the failures of nodes without one by ``deadline``; ends if cancelled."""
        self._forget()
        deadline = request["deadline"]
        pending = {
            self._ask(node, request): _Step(node, False, True) for node in request["nodes"] if node in self.actors
        }
        waiting = deque(node for node in request["nodes"] if node not in self.actors)
        while (pending or waiting) and time.monotonic() < deadline:
            if is_over():
                return
            starting = sum(step.is_start for step in pending.values())
            for _ in range(min(len(waiting), MAX_STARTS - starting)):
                node_id = waiting.popleft()
                pending[self.begin(node_id)] = _Step(node_id, True)
            for ref in _ready(list(pending), min(TURN_S, max(0.0, deadline - time.monotonic()))):
                step = pending.pop(ref)
                result = self._continue(step, ref, request)
                if isinstance(result, _Next):
                    pending[result.ref] = result.step
                else:
                    yield step.node_id, result
        for step in pending.values():
            reason = "the start of its probe timed out" if step.is_start else "its probe timed out"
            yield step.node_id, NodeFailure(reason, "timeout")
        for node_id in waiting:
            yield node_id, NodeFailure("the start of its probe timed out", "timeout")

    def begin(self, node_id: str) -> Any:
        """Starts the node's probe and asks whether the node has a py-spy.

        It requires one byte of memory, so that the GCS sends the request through this host's raylet. Another raylet may
        be unreachable (seen on Ray 2.46).
        """
        place = NodeAffinitySchedulingStrategy(node_id, soft=False)
        actor = ray.remote(ProbeActor).options(num_cpus=0, memory=1, scheduling_strategy=place, max_restarts=0)
        self.actors[node_id] = actor.remote()
        return self.actors[node_id].has_pyspy.remote()

    def _forget(self) -> None:
        """Drops the probes that have ended by themselves, or are about to."""
        now = time.monotonic()
        for node_id in [node for node, used_at in self._used_at.items() if now - used_at > FORGOTTEN_S]:
            self._used_at.pop(node_id)
            self.actors.pop(node_id, None)

    def _ask(self, node_id: str, request: Request) -> Any:
        """Requests the node's sample."""
        parts, left_s = request["nodes"][node_id], request["deadline"] - ANSWER_S - time.monotonic()
        self._used_at[node_id] = time.monotonic()
        wanted: wire.NodeRequest = {
            "is_first": request["is_first"],
            "workers": parts["workers"],
            "questions": request["questions"],
            "targets": parts["targets"],
            "options": {**request["options"], "deadline_s": max(0.1, left_s)},
        }
        return self.actors[node_id].sample.remote(wanted)

    def _continue(self, step: _Step, ref: Any, request: Request) -> bytes | NodeFailure | _Next:
        """The node's answer or failure if it is done, else its next step."""
        try:
            value = ray.get(ref, timeout=max(0.1, request["deadline"] - time.monotonic()))
            if not step.is_start:
                return value if isinstance(value, bytes) else MALFORMED
            self.equip(step.node_id, has_pyspy=bool(value))
            return _Next(self._ask(step.node_id, request), _Step(step.node_id, False))
        except Exception as error:  # whatever a remote probe raises is that node's failure
            self.actors.pop(step.node_id, None)
            if step.is_old:
                return _Next(self.begin(step.node_id), _Step(step.node_id, True))
            return NodeFailure(f"its probe failed: {first_line(error)}")

    def equip(self, node_id: str, *, has_pyspy: bool) -> None:
        """Send this host's py-spy to a node without one."""
        if not has_pyspy and (binary := self._pyspy_binary()):
            self.actors[node_id].equip.remote(binary)

    def _pyspy_binary(self) -> Any:
        path = find_pyspy()
        if self._binary is None and path is not None:
            self._binary = ray.put(Path(path).read_bytes())
        return self._binary


@dataclass(frozen=True, slots=True)
class _Next:
    """The step that a node takes now, and the ref of its result."""

    ref: Any
    step: _Step


def _ready(refs: list[Any], timeout_s: float) -> list[Any]:
    """All refs that are ready as soon as one is."""
    done, _ = ray.wait(refs, timeout=timeout_s)
    return list(ray.wait(refs, num_returns=len(refs), timeout=0)[0]) if done else []


def main(answers: IO[bytes], arguments: list[str]) -> None:
    """Serves requests until standard input ends.

    Before it has joined the cluster it may hang in C++ and has no actors: then the kernel kills it with its parent.
    """
    requests: queue.Queue[Request | None] = queue.Queue()
    if not joins(answers, arguments[0], requests):
        return
    probes = Probes()
    while (request := requests.get()) is not None:
        for node_id, result in probes.sample(request, is_over=lambda: not requests.empty()):
            send(answers, "reply", reply(request["number"], node_id, result))
    ray.shutdown()


def joins(answers: IO[bytes], address: str, requests: queue.Queue[Any]) -> bool:
    """Whether this process could join the cluster; from then on the queue receives its requests, and None at the end.

    Sends a message about it to the parent.
    """
    threading.Thread(target=_read_requests, args=(requests,), name="dstack-requests", daemon=True).start()
    try:
        ray.init(address=address, namespace=PROBE_NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # every reason not to connect is one answer to the parent
        reason = f"dstack could not join the cluster as a driver: {first_line(error)}"
        send(answers, "ended", to_json(NodeFailure(reason, "ended")))
        return False
    outlive_parent()
    send(answers, "joined")
    return True


def _read_requests(requests: queue.Queue[Any]) -> None:
    """Forwards requests; at the end of standard input it ends the process, even if Ray is blocked."""
    for message in Messages(sys.stdin.buffer):
        requests.put(json.loads(message.payload))
    requests.put(None)
    time.sleep(END_GRACE_S)
    os._exit(1)


def reply(number: int, node_id: str, result: bytes | NodeFailure) -> bytes:
    """A :class:`Reply` as it is sent."""
    if isinstance(result, NodeFailure):
        return encoded(Reply(number=number, node_id=node_id, failure=result))
    return encoded(Reply(number=number, node_id=node_id, answer=result))


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
