"""The child process that holds dstack's Ray connection; its argument is the address of the GCS.

Receives ``sample`` messages by standard input and answers with messages whose payload is JSON (:mod:`dstack.child`):
``joined`` when it has joined the cluster, ``ended`` with the reason when it cannot, and ``reply`` for each node; see
:mod:`dstack.probes.node_access.driver_messages`. It ends with its parent, and its actors end with it.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import dstack.probes.node
from dstack.child import Messages, outlive_parent, send
from dstack.document_file import to_json
from dstack.probes.node import wire
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.pyspy.runner import find_pyspy
from dstack.probes.node_access.answers import MALFORMED, NodeFailure
from dstack.probes.node_access.driver_messages import Request
from dstack.probes.ray_state.control_plane import PROBE_NAMESPACE

END_GRACE_S = 0.8
"""How long an orderly end may take after standard input has closed."""
ANSWER_S = 0.3
"""How long before the deadline a probe must stop, so that its answer arrives in time."""
TURN_S = 0.05
"""How often a wait for nodes checks whether it was cancelled."""


class Probes:
    """One probe actor for each requested node, kept between requests."""

    def __init__(self) -> None:
        ray.cloudpickle.register_pickle_by_value(dstack.probes.node)
        self.actors: dict[str, Any] = {}
        self._binary: Any = None

    def sample(self, request: Request, is_over: Callable[[], bool]) -> Iterator[tuple[str, object]]:
        """The answers as they arrive, then the failures of nodes without one by ``deadline``; ends if cancelled."""
        targets, deadline = request["targets"], request["deadline"]
        pending = {self.begin(node_id): (node_id, True) for node_id in targets}
        while pending and time.monotonic() < deadline:
            if is_over():
                return
            done, _ = ray.wait(list(pending), timeout=min(TURN_S, max(0.0, deadline - time.monotonic())))
            for ref in done:
                node_id, is_start = pending.pop(ref)
                left: wire.Options = {**request["options"], "deadline_s": deadline - ANSWER_S - time.monotonic()}
                is_over_there, result = self._continue(node_id, is_start, ref, targets[node_id], left)
                if is_over_there:
                    yield node_id, result
                else:
                    pending[result] = (node_id, False)
        for node_id, is_start in pending.values():
            reason = "the start of its probe timed out" if is_start else "its probe timed out"
            yield node_id, NodeFailure(reason, "timeout")

    def begin(self, node_id: str) -> Any:
        """Starts the node's probe and asks whether the node has a py-spy.

        It requires one byte of memory, so that the GCS sends the request through this host's raylet. Another raylet may
        be unreachable (seen on Ray 2.46).
        """
        if node_id not in self.actors:
            place = NodeAffinitySchedulingStrategy(node_id, soft=False)
            actor = ray.remote(NodeProbe).options(num_cpus=0, memory=1, scheduling_strategy=place, max_restarts=0)
            self.actors[node_id] = actor.remote(is_guest=True)
        return self.actors[node_id].has_pyspy.remote()

    def _continue(
        self, node_id: str, is_start: bool, ref: Any, targets: list[wire.Target], options: wire.Options
    ) -> tuple[bool, Any]:
        """The node's answer or failure if it is done, else the ref of its next step."""
        try:
            value = ray.get(ref, timeout=max(0.1, options["deadline_s"]))
            if not is_start:
                return True, value
            self.equip(node_id, has_pyspy=bool(value))
            return False, self.actors[node_id].sample.remote(targets, options)
        except Exception as error:  # whatever a remote probe raises is that node's failure
            self.actors.pop(node_id, None)
            return True, NodeFailure(f"its probe failed: {first_line(error)}")

    def equip(self, node_id: str, *, has_pyspy: bool) -> None:
        """Send this host's py-spy to a node without one."""
        if not has_pyspy and (binary := self._pyspy_binary()):
            self.actors[node_id].equip.remote(binary)

    def _pyspy_binary(self) -> Any:
        path = find_pyspy()
        if self._binary is None and path is not None:
            self._binary = ray.put(Path(path).read_bytes())
        return self._binary


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


def reply(number: int, node_id: str, result: object) -> bytes:
    """The JSON of a :class:`Reply`; an answer that JSON cannot carry is malformed."""
    of = {"number": number, "node_id": node_id}
    if isinstance(result, NodeFailure):
        return to_json({**of, "failure": result})
    try:
        return to_json({**of, "answer": result})
    except (TypeError, ValueError, RecursionError):
        return to_json({**of, "failure": MALFORMED})


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
