"""Requests to Ray Serve deployments: those that coroutines execute, and those that wait for a replica.

Read from the locals of Serve's own functions, and the objects that these refer to. Seen on Ray 2.60; on 2.46 the router
and the replica have the same attributes, in other files. Other forms are ignored.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence

from dstack.libraries.serve import CHOOSING, PRIVATE, REPLICA_FILE
from dstack.observed.calls import QueuedRequest, ServeRequest
from dstack.observed.processes import LibraryCount, LibraryState
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.redaction import masked_local
from dstack.probes.node.thread_stacks import is_in

ROUTER_FILE = f"{PRIVATE}router.py"
TAKES_SLOT = (f"{PRIVATE}utils.py", "acquire")
"""Where a request that a replica has accepted waits for one of its slots."""
METHODS = (("request_metadata", "call_method"), ("user_method_info", "name"))
"""The locals that name the user's method, each with the attribute that does."""
CONTROLLER = (f"{PRIVATE}controller.py", "run_control_loop")
"""The loop of Serve's controller."""
HEALTHY = "HEALTHY"
MAX_REPLICAS = 256
MAX_LIMIT = 1 << 31
LAST_TIME = 253_370_764_800
MAX_NAME, MAX_MESSAGE, MAX_LINE = 200, 20_000, 160
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class ServeRequests:
    """Reads requests from the frames of coroutines of one process."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._limits: dict[int, dict[str, int]] = {}

    def executed(self, frames: Sequence[MemoryFrame]) -> ServeRequest | None:
        """The request that a coroutine of a replica executes; None for any other coroutine."""
        for frame in frames:
            if not frame.file.endswith(REPLICA_FILE):
                continue
            with contextlib.suppress(UnreadableMemory):
                if request := self._executed(frame):
                    return request
        return None

    def _executed(self, frame: MemoryFrame) -> ServeRequest | None:
        """By the local that names the method: that of an HTTP request is not in every frame."""
        replica = frame.local("self")
        for local, attribute in METHODS:
            if replica and (source := frame.local(local)):
                deployment = self._objects.attribute(replica, "_deployment_id")
                return self._request(self._objects.attribute(source, attribute), deployment)
        return None

    def queued(self, frames: Sequence[MemoryFrame]) -> QueuedRequest | None:
        """The request that a coroutine holds until a replica has room. Raises :class:`UnreadableMemory`."""
        for frame in frames:
            file = CHOOSING.get(frame.function)
            if file and frame.file.endswith(file):
                return self._in_router(frame, frames)
        if frames and is_in(frames[0], *TAKES_SLOT):
            return self._in_replica(frames)
        return None

    def _in_router(self, frame: MemoryFrame, frames: Sequence[MemoryFrame]) -> QueuedRequest:
        router = self._objects.attributes(frame.local("self"))
        pending = self._objects.attributes(frame.local("pending_request"))
        method = self._objects.attribute(pending.get("metadata", 0), "call_method")
        return QueuedRequest(
            request=self._request(method, router.get("_deployment_id", 0)),
            made_at=self._time(pending.get("created_at", 0)),
            replicas=self._replicas(router.get("_replicas", 0)),
            most_replicas=self._most_replicas(frames),
        )

    def _replicas(self, replicas: int) -> dict[str, int]:
        """The limits of the replicas that a router knows, by their ids; read once for all of its requests."""
        if replicas not in self._limits:
            self._limits[replicas] = self._limits_of(self._objects.entries(replicas))
        return self._limits[replicas]

    def _limits_of(self, replicas: Sequence[tuple[int, int]]) -> dict[str, int]:
        if len(replicas) > MAX_REPLICAS:
            raise UnreadableMemory(f"a deployment of {len(replicas)} replicas")
        limits = {}
        for _, replica in replicas:
            info = self._objects.attributes(self._objects.attribute(replica, "_replica_info"))
            replica_id = self._objects.attribute(info.get("replica_id", 0), "unique_id")
            limits[self._name(replica_id)] = self._limit(info.get("max_ongoing_requests", 0))
        return limits

    def _most_replicas(self, frames: Sequence[MemoryFrame]) -> int | None:
        """The maximum number of replicas of the deployment, from its configuration in the router."""
        for frame in frames:
            if not frame.file.endswith(ROUTER_FILE) or not frame.local("self"):
                continue
            with contextlib.suppress(UnreadableMemory):
                metrics = self._objects.attribute(frame.local("self"), "_metrics_manager")
                config = self._objects.attributes(self._objects.attribute(metrics, "_deployment_config"))
                scaling = config.get("autoscaling_config", 0)
                if not scaling:
                    return None
                is_fixed = self._objects.is_a(scaling, "NoneType")
                most = config.get("num_replicas", 0) if is_fixed else self._objects.attribute(scaling, "max_replicas")
                return self._limit(most)
        return None

    def _in_replica(self, frames: Sequence[MemoryFrame]) -> QueuedRequest | None:
        for frame in frames:
            if is_in(frame, REPLICA_FILE, "_start_request"):
                replica = self._objects.attributes(frame.local("self"))
                replica_id = self._objects.attribute(replica.get("_replica_id", 0), "unique_id")
                config = self._objects.attributes(replica.get("_deployment_config", 0))
                method = self._objects.attribute(frame.local("request_metadata"), "call_method")
                return QueuedRequest(
                    request=self._request(method, replica.get("_deployment_id", 0)),
                    replicas={self._name(replica_id): self._limit(config.get("max_ongoing_requests", 0))},
                    in_replica=True,
                )
        return None

    def _request(self, method: int, deployment: int) -> ServeRequest:
        names = self._objects.attributes(deployment)
        return ServeRequest(
            app=self._name(names.get("app_name", 0)),
            deployment=self._name(names.get("name", 0)),
            method=self._name(method),
        )

    def _name(self, address: int) -> str:
        return self._objects.text(address, MAX_NAME)

    def _time(self, address: int) -> float:
        seconds = self._objects.number(address)
        return seconds if seconds is not None and 0.0 <= seconds < LAST_TIME else 0.0

    def _limit(self, address: int) -> int:
        number = self._objects.number(address)
        if number is None or not 0 <= number <= MAX_LIMIT:
            raise UnreadableMemory("a limit that is not a number")
        return int(number)


def deployments(objects: Objects, controller: int) -> Iterator[LibraryState]:
    """The deployments that are not healthy, of Serve's controller. Raises :class:`UnreadableMemory`."""
    manager = objects.attribute(controller, "deployment_state_manager")
    for _, deployment in objects.entries(objects.attribute(manager, "_deployment_states"))[:MAX_REPLICAS]:
        state = objects.attributes(deployment)
        status = objects.attributes(state["_curr_status_info"])
        status_name = objects.text(objects.attribute(status["status"], "_name_"), MAX_NAME)
        if status_name != HEALTHY:
            message = ends_of(objects.text(status["message"], MAX_MESSAGE))
            yield _deployment(objects, state, status_name, message)


def ends_of(message: str) -> str:
    """The first and the last line of a message, without secrets: a traceback ends in the exception."""
    lines = [line.strip() for line in COLOUR.sub("", message).splitlines() if line.strip()]
    shown = dict.fromkeys((*lines[:1], *lines[-1:]))
    return " ... ".join(masked_local("", line)[:MAX_LINE] for line in shown)


def _deployment(objects: Objects, state: dict[str, int], status: str, message: str) -> LibraryState:
    name = objects.attributes(state["_id"])
    replicas = objects.entries(objects.attribute(state["_replicas"], "_replicas"))
    running = (kept for kind, kept in replicas if objects.text(objects.attribute(kind, "_name_")) == "RUNNING")
    counts: dict[LibraryCount, float | None] = {
        "replicas": objects.number(objects.attribute(state["_target_state"], "target_num_replicas")),
        "running replicas": sum(objects.size(kept, "list") for kept in running),
        "failed starts": objects.number(state.get("_replica_failure_count", 0)),
    }
    return LibraryState(
        library="Serve",
        name=objects.text(name["name"], MAX_NAME),
        app=objects.text(name["app_name"], MAX_NAME),
        state=status,
        message=message,
        counts={name: int(count) for name, count in counts.items() if count and count > 0},
    )
