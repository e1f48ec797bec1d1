"""The child process that holds dstack's Ray connection; its argument is the address of the GCS.

Receives ``sample`` messages by standard input and answers with messages (:mod:`dstack.processes.child`): ``joined``
when it has joined the cluster, ``ended`` with the reason when it cannot, and ``reply`` for each node; see
:mod:`dstack.probes.node_access.driver_messages`. It ends with its parent, and its actors end with it.
"""

from __future__ import annotations

import copyreg
import json
import os
import queue
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import ray
from msgspec import Meta
from ray._raylet import GcsClient
from ray.core.generated.gcs_pb2 import GcsNodeInfo
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import dstack.call_sites
import dstack.libraries
import dstack.observed
import dstack.probes.node
from dstack.files.document_file import to_json
from dstack.observed.node import Count, NodeAnswer
from dstack.probes.connection.hosts import canonical
from dstack.probes.node import wire
from dstack.probes.node.probe_actor import IDLE_S, ProbeActor
from dstack.probes.node.pyspy import find_pyspy
from dstack.probes.node_access.answers import MALFORMED, NodeFailure
from dstack.probes.node_access.driver_messages import Reply, Request, encoded
from dstack.probes.node_access.targets import own_addresses
from dstack.probes.ray_state.control_plane import PROBE_NAMESPACE
from dstack.processes.child import Messages, outlive_parent, send

RUN_THERE = "Run dstack on that node: a raylet starts as many workers at once as it has CPUs, and these may hang."
END_GRACE_S = 0.8
"""How long an orderly end may take after standard input has closed."""
ANSWER_S = 0.3
"""How long before the deadline a probe must stop, so that its answer arrives in time."""
TURN_S = 0.05
"""How often a wait for nodes checks whether it was cancelled."""
TRAVELLING = (
    dstack.call_sites,
    dstack.libraries,
    dstack.observed,
    dstack.probes.node,
)
"""What is sent to the nodes with the probe, because dstack is not installed there."""
MAX_STARTS = 256
"""The most probes that start at the same time."""
FORGOTTEN_S = IDLE_S - 5.0
"""How long an unused probe certainly lives."""
LIST_S = 2.0
"""The timeout of listing the nodes."""
LINK_SOCKETS = (
    "Run dstack in the container of Ray. In another one that shares its processes, first link Ray's files, with the pid"
    " of the raylet: ln -sT /proc/PID/root/tmp/ray /tmp/ray"
)


def pickle_by_value() -> None:
    """Has :data:`TRAVELLING` pickled by value; what msgspec keeps on classes that it has seen stays here."""
    for module in TRAVELLING:
        ray.cloudpickle.register_pickle_by_value(module)
    known = (getattr(kind, "__msgspec_cache__", None) for kind in (NodeAnswer, Count))
    for kind in (Meta, *map(type, filter(None, known))):
        copyreg.pickle(kind, lambda _: (type(None), ()))


class Probes:
    """One probe actor for each requested node, kept between requests."""

    def __init__(self) -> None:
        pickle_by_value()
        self.actors: dict[str, Any] = {}
        self._used_at: dict[str, float] = {}
        self._binary: Any = None

    def kept(self) -> set[str]:
        """The nodes whose probe has been used so recently that it lives, if nothing has killed it; forgets others."""
        now = time.monotonic()
        for node_id in [node for node, used_at in self._used_at.items() if now - used_at > FORGOTTEN_S]:
            self.drop(node_id)
        return set(self._used_at)

    def begin(self, node_id: str) -> Any:
        """Starts the node's probe and asks whether the node has a py-spy.

        It requires one byte of memory, so that the GCS sends the request through this host's raylet. Another raylet may
        be unreachable (seen on Ray 2.46).
        """
        if node_id not in self.actors:
            place = NodeAffinitySchedulingStrategy(node_id, soft=False)
            actor = ray.remote(ProbeActor).options(num_cpus=0, memory=1, scheduling_strategy=place, max_restarts=0)
            self.actors[node_id] = actor.remote()
        return self.actors[node_id].has_pyspy.remote()

    def equip(self, node_id: str, *, has_pyspy: bool) -> None:
        """Send this host's py-spy to a node without one."""
        if not has_pyspy and (binary := self._pyspy_binary()):
            self.actors[node_id].equip.remote(binary)

    def ask(self, node_id: str, request: Request) -> Any:
        """Requests the node's sample."""
        parts, left_s = request["nodes"][node_id], request["deadline"] - ANSWER_S - time.monotonic()
        self._used_at[node_id] = time.monotonic()
        wanted: wire.NodeRequest = {
            "is_first": request["is_first"],
            "nodes": [node_id],
            "workers": parts["workers"],
            "questions": request["questions"],
            "targets": parts["targets"],
            "options": {**request["options"], "deadline_s": max(0.1, left_s)},
        }
        return self.actors[node_id].sample.remote(wanted)

    def drop(self, node_id: str) -> None:
        """Ends the node's probe, if it has not ended."""
        self.actors.pop(node_id, None)
        self._used_at.pop(node_id, None)

    def _pyspy_binary(self) -> Any:
        path = find_pyspy()
        if self._binary is None and path is not None:
            self._binary = ray.put(Path(path).read_bytes())
        return self._binary


class Sample:
    """One request to all its nodes. A kept probe that turns out to have ended is started again, once."""

    def __init__(self, probes: Probes, request: Request) -> None:
        self._probes = probes
        self._request = request
        self._kept = probes.kept() & request["nodes"].keys()
        self._waiting = deque(node_id for node_id in request["nodes"] if node_id not in self._kept)
        self._starting: dict[Any, str] = {}
        self._reading = {probes.ask(node_id, request): node_id for node_id in self._kept}

    def answers(self, is_over: Callable[[], bool]) -> Iterator[tuple[str, bytes | NodeFailure]]:
        """The answers as they arrive, then the failures of nodes without one by the deadline; ends if cancelled."""
        deadline = self._request["deadline"]
        while (self._waiting or self._starting or self._reading) and (now := time.monotonic()) < deadline:
            if is_over():
                return
            while self._waiting and len(self._starting) < MAX_STARTS:
                node_id = self._waiting.popleft()
                self._starting[self._probes.begin(node_id)] = node_id
            for ref in _ready([*self._starting, *self._reading], min(TURN_S, deadline - now)):
                yield from self._proceed(ref)
        for node_id in (*self._waiting, *self._starting.values()):
            yield node_id, NodeFailure("the start of its probe timed out", "timeout", RUN_THERE)
        for node_id in self._reading.values():
            yield node_id, NodeFailure("its probe timed out", "timeout")

    def _proceed(self, ref: Any) -> Iterator[tuple[str, bytes | NodeFailure]]:
        """The node's answer or failure if it is done; else its next step begins."""
        is_start = ref in self._starting
        node_id = (self._starting if is_start else self._reading).pop(ref)
        try:
            value = ray.get(ref)
            if is_start:
                self._probes.equip(node_id, has_pyspy=bool(value))
                self._reading[self._probes.ask(node_id, self._request)] = node_id
                return
            yield node_id, value if isinstance(value, bytes) else MALFORMED
        except Exception as error:  # whatever a remote probe raises is that node's failure
            self._probes.drop(node_id)
            if node_id in self._kept and isinstance(error, RayActorError):
                self._kept.discard(node_id)
                self._waiting.append(node_id)
                return
            yield node_id, NodeFailure(f"its probe failed: {first_line(error)}")


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
        for node_id, result in Sample(probes, request).answers(is_over=lambda: not requests.empty()):
            send(answers, "reply", reply(request["number"], node_id, result))
    ray.shutdown()


def joins(answers: IO[bytes], address: str, requests: queue.Queue[Any]) -> bool:
    """Whether this process could join the cluster; from then on the queue receives its requests, and None at the end.

    Sends a message about it to the parent.
    """
    threading.Thread(target=_read_requests, args=(requests,), name="dstack-requests", daemon=True).start()
    if (path := hidden_socket(address)) is not None:
        reason = f"dstack could not join the cluster as a driver: no access to the socket of this host's raylet, {path}"
        send(answers, "ended", to_json(NodeFailure(reason, "ended", LINK_SOCKETS)))
        return False
    try:
        ray.init(address=address, namespace=PROBE_NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # every reason not to connect is one answer to the parent
        reason = f"dstack could not join the cluster as a driver: {first_line(error)}"
        send(answers, "ended", to_json(NodeFailure(reason, "ended")))
        return False
    outlive_parent()
    send(answers, "joined")
    return True


def hidden_socket(address: str) -> str | None:
    """The socket of this host's raylet if it is not accessible here, as in another container of the raylet's pod.

    Ray would retry for 10 s, end this process, and leave a directory at the path (seen on Ray 2.60).
    """
    try:
        nodes = GcsClient(address=address).get_all_node_info(timeout=LIST_S).values()
    except Exception:  # joining fails, too, and says why
        return None
    own = own_addresses()
    here = [one for one in nodes if one.state == GcsNodeInfo.ALIVE and canonical(one.node_manager_address) in own]
    sockets = [one.raylet_socket_name for one in here if one.raylet_socket_name]
    return None if any(map(os.path.exists, sockets)) else next(iter(sockets), None)


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
