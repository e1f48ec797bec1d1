"""The child process that holds dstack's Ray connection, and the probes on other nodes.

It receives a request (:mod:`dstack.probes.node_access.answers`) and sends ``joined`` when it has joined the
cluster, ``ended`` with the reason when it cannot, and ``reply`` for each node, or for each round of each node. It ends
with its parent, and its actors end with it.
"""

from __future__ import annotations

import copyreg
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from dstack.observed.node import Count, NodeAnswer
from dstack.probes.connection.hosts import canonical
from dstack.probes.node import wire
from dstack.probes.node.probe_actor import IDLE_S, ProbeActor
from dstack.probes.node.procfs import proc
from dstack.probes.node.pyspy import find_pyspy
from dstack.probes.node_access.answers import MALFORMED, NodeFailure, RecordRequest, Reply, RoundReply, SampleRequest
from dstack.probes.node_access.targets import own_addresses
from dstack.probes.ray_state.control_plane import PROBE_NAMESPACE
from dstack.processes.child import Parent, outlive_parent

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
START_S = 20.0
"""How long a probe may take to start before a recording."""
LATE_S = 5.0
"""How long after its end a round is awaited."""
LIST_S = 2.0
"""The timeout of listing the nodes."""
ANY_PATCH = "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL"
"""With "minor", Ray lets a driver join whose Python has another patch version; Ray 2.60."""
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
        """Starts the node's probe and asks for which machine the node needs a py-spy.

        It requires one byte of memory, so that the GCS sends the request through this host's raylet. Another raylet may
        be unreachable (seen on Ray 2.46).
        """
        if node_id not in self.actors:
            place = NodeAffinitySchedulingStrategy(node_id, soft=False)
            actor = ray.remote(ProbeActor).options(num_cpus=0, memory=1, scheduling_strategy=place, max_restarts=0)
            self.actors[node_id] = actor.remote()
        return self.actors[node_id].needs_pyspy_for.remote()

    def equip(self, node_id: str, machine: object) -> None:
        """Send this host's py-spy to a node without one, if it has the same machine as this host."""
        if machine == proc.machine() and (binary := self._pyspy_binary()):
            self.actors[node_id].equip.remote(binary)

    def ask(self, node_id: str, request: SampleRequest) -> Any:
        """Requests the node's sample."""
        left_s = request.deadline - ANSWER_S - time.monotonic()
        self._used_at[node_id] = time.monotonic()
        wanted: wire.NodeRequest = {
            "is_first": request.is_first,
            "nodes": [node_id],
            **request.nodes[node_id],
            "questions": request.questions,
            "options": {**request.options, "deadline_s": max(0.1, left_s)},
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


class NodeSamples:
    """The sample of all nodes of a request. A kept probe that turns out to have ended is started again, once."""

    def __init__(self, probes: Probes, request: SampleRequest) -> None:
        self._probes = probes
        self._request = request
        self._kept = probes.kept() & request.nodes.keys()
        self._waiting = deque(node_id for node_id in request.nodes if node_id not in self._kept)
        self._starting: dict[Any, str] = {}
        self._reading = {probes.ask(node_id, request): node_id for node_id in self._kept}

    def answers(self, is_over: Callable[[], bool]) -> Iterator[tuple[str, bytes | NodeFailure]]:
        """The answers as they arrive, then the failures of nodes without one by the deadline; ends if cancelled."""
        deadline = self._request.deadline
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
                self._probes.equip(node_id, value)
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


@dataclass(frozen=True, slots=True)
class _RoundStep:
    """What a node is doing: its probe starts, or it records a round."""

    node_id: str
    deadline: float
    is_last: bool = False
    is_start: bool = False


class NodeRounds:
    """The rounds of a recording of all nodes, each of which has at most one at a time: a slow one delays no other."""

    def __init__(self, probes: Probes) -> None:
        self._probes = probes
        self._steps: dict[Any, _RoundStep] = {}
        self._started: set[str] = set()
        self._over: set[str] = set()

    def replies(
        self, request: RecordRequest, requests: queue.Queue[SampleRequest | RecordRequest | None]
    ) -> Iterator[RoundReply]:
        """The rounds as they end, until all nodes have ended or the queue has; first that a probe has started."""
        latest: SampleRequest | RecordRequest | None = request
        while isinstance(latest, RecordRequest):
            busy = {step.node_id for step in self._steps.values()}
            for node_id in latest.targets.keys() - self._over - busy:
                self._begin_step(node_id, latest)
            yield from self._proceed()
            if latest.end and not self._steps and time.monotonic() > latest.end:
                return
            while not requests.empty() and latest is not None:
                latest = requests.get()

    def _begin_step(self, node_id: str, request: RecordRequest) -> None:
        """Start the probe of an idle node, or its next round if the recording has begun."""
        now = time.monotonic()
        if node_id not in self._started:
            self._steps[self._probes.begin(node_id)] = _RoundStep(node_id, now + START_S, is_start=True)
        elif request.end:
            seconds = max(0.0, min(request.options["seconds"], request.end - now))
            is_last = now + seconds >= request.end
            options: wire.RecordOptions = {**request.options, "seconds": seconds, "is_last": is_last}
            ref = self._probes.actors[node_id].record.remote(request.targets[node_id], options)
            self._steps[ref] = _RoundStep(node_id, now + seconds + LATE_S, is_last)

    def _proceed(self) -> Iterator[RoundReply]:
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

    def _finished(self, step: _RoundStep, value: object) -> RoundReply:
        if step.is_start:
            self._probes.equip(step.node_id, value)
            self._started.add(step.node_id)
            return RoundReply(step.node_id, None, is_last=False)
        if step.is_last:
            self._over.add(step.node_id)
        return RoundReply(step.node_id, value if isinstance(value, bytes) else MALFORMED, step.is_last)

    def _failed(self, step: _RoundStep, why: NodeFailure) -> RoundReply:
        self._over.add(step.node_id)
        return RoundReply(step.node_id, why, is_last=True)


def main(parent: Parent, address: str) -> None:
    """Serves requests until the parent sends no more; a recording is the last one.

    Before it has joined the cluster it may hang in C++ and has no actors: then the kernel kills it with its parent.
    """
    requests: queue.Queue[SampleRequest | RecordRequest | None] = queue.Queue()
    threading.Thread(target=_read_requests, args=(parent, requests), name="dstack-requests", daemon=True).start()
    if (failure := join(address)) is not None:
        parent.send("ended", failure)
        return
    outlive_parent()
    parent.send("joined")
    probes = Probes()
    while (request := requests.get()) is not None:
        if isinstance(request, RecordRequest):
            for reply in NodeRounds(probes).replies(request, requests):
                parent.send("reply", reply)
            break
        for node_id, result in NodeSamples(probes, request).answers(is_over=lambda: not requests.empty()):
            parent.send("reply", Reply(request.number, node_id, result))
    ray.shutdown()


def join(address: str) -> NodeFailure | None:
    """Join the cluster; returns why this is impossible."""
    if (path := hidden_socket(address)) is not None:
        reason = f"dstack could not join the cluster as a driver: no access to the socket of this host's raylet, {path}"
        return NodeFailure(reason, "ended", LINK_SOCKETS)
    try:
        os.environ.setdefault(ANY_PATCH, "minor")
        ray.init(address=address, namespace=PROBE_NAMESPACE, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # every reason not to connect is one answer to the parent
        return NodeFailure(f"dstack could not join the cluster as a driver: {first_line(error)}", "ended")
    return None


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


def _read_requests(parent: Parent, requests: queue.Queue[SampleRequest | RecordRequest | None]) -> None:
    """Forwards requests; when no more follow it ends the process, even if Ray is blocked."""
    for request in parent:
        requests.put(request.value)
    requests.put(None)
    time.sleep(END_GRACE_S)
    os._exit(1)


def first_line(error: BaseException) -> str:
    """The first line of an error's text with what it introduces, or its class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].endswith(":"):
        lines = [" ".join(lines)]
    return (lines[0] if lines else type(error).__name__)[:300]
