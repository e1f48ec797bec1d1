"""Probes on other nodes, through a child process that is the only Ray driver that dstack starts.

The probes and the child are kept between samples. A node that takes far longer than most is given up, so that the
others are not delayed (:class:`Patience`).

The child can be killed at any time, so every call to Ray has a deadline; Ray then ends the probe actors. It ends by
itself when its standard input closes, and while it joins the cluster the kernel kills it with dstack, so nothing
stays if dstack is killed.
"""

from __future__ import annotations

import math
import os
import queue
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dstack.observed.node import NodeAnswer
from dstack.probes.connection.background import begin
from dstack.probes.connection.cluster_ray import python_of
from dstack.probes.connection.connect import Cluster
from dstack.probes.connection.hosts import RayletAddress, unreachable
from dstack.probes.node import wire
from dstack.probes.node_access.answers import (
    NodeFailure,
    NodeParts,
    RecordRequest,
    Reply,
    SampleRequest,
    result_of,
    unpacked,
)
from dstack.processes.child import Child, Message

OWN = str(Path(__file__).parents[3])
"""The folder that has dstack."""
Result = NodeAnswer | NodeFailure
LAST_WORD_S = 0.15
"""How long before the deadline the child stops waiting, to report the nodes that did not answer."""
RUN_ON_A_NODE = "Run dstack on a node of the cluster, as the user of Ray and with its minor version of Python."
SOON_S = 0.3
"""How long an answer is awaited before it is checked whether a connection leads to the node at all."""
MOST = 0.9
FEW_NODES, FEW_SHARE = 20, 30
LATE_SHARE = 0.25
WAIT_LONGER = "Use a longer timeout to wait longer for slow nodes."
END_S = 1.0
"""How long the child may take to end in order; longer than its own limit."""


class Patience:
    """How long the nodes of a request are awaited, by ``time.monotonic()``: most of them until ``deadline``.

    Most are 90 %, of fewer than ten nodes all but one. Once they have answered, the others get as long again as those
    have taken; where a share of the timeout is longer, they get that: the whole timeout for one node, a thirtieth of it
    from 20 nodes on. From 20 nodes on, those that were given up in the request before are hardly awaited: they get a
    quarter of the usual time once all others have answered. Nodes that fail are not counted: they say nothing about
    how long an answer takes.
    """

    def __init__(self, nodes: int, deadline: float) -> None:
        self._nodes = nodes
        self._began = time.monotonic()
        self._timeout_s = deadline - self._began
        self.until = deadline
        self.usual_s: float | None = None

    def note(self, answered: int, failed: int = 0, *, are_others_late: bool = False) -> None:
        """Note how many nodes have answered, and failed; ``are_others_late`` if all others were late before."""
        now, nodes = time.monotonic(), self._nodes - failed
        if self.usual_s is None and answered >= max(1, min(nodes - 1, math.ceil(MOST * nodes))):
            self.usual_s = now - self._began
            share = min(1.0, max(1.0, FEW_NODES / max(1, nodes)) / FEW_SHARE)
            self.until = min(self.until, now + max(self.usual_s, share * self._timeout_s))
        if self.usual_s is not None and are_others_late and nodes >= FEW_NODES:
            self.until = min(self.until, now + LATE_SHARE * self.usual_s)

    def why_late(self, *, is_reached: bool) -> NodeFailure:
        """Why a node without an answer is given up now; ``is_reached`` if it has accepted a connection."""
        assert self.usual_s is not None
        waited_s = time.monotonic() - self._began
        if not is_reached:
            reason = f"no connection within {waited_s:.1f} s; most nodes answered within {self.usual_s:.1f} s"
            return NodeFailure(reason, "unreachable", WAIT_LONGER)
        reason = f"its probe did not answer within {waited_s:.1f} s; most nodes did within {self.usual_s:.1f} s"
        return NodeFailure(reason, "timeout", WAIT_LONGER)


class ClusterDriver:
    """The child process that is dstack's driver on a cluster, see :mod:`dstack.probes.node_access.remote_driver`.

    ``receive`` is called with each reply, and with None when no other follows, in a thread of the driver's own.
    """

    MODULE = "dstack.probes.node_access.remote_driver"

    def __init__(self, cluster: Cluster, receive: Callable[[Any], None], module: str | None = None) -> None:
        self._receive = receive
        self._joined = False
        self._ended: NodeFailure | None = None
        python = python_of(cluster.ray_version)
        self._child = Child(
            module or self.MODULE,
            cluster.address,
            environment=_environment(cluster, is_own_python=python is None),
            start_new_session=True,  # Ctrl-C goes to dstack, which ends the child in order
            python=python,
            path=[OWN, *filter(None, sys.path)],
        )
        begin(self._serve)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, or cannot join the cluster."""
        return self._ended is not None

    def request(self, request: SampleRequest | RecordRequest) -> None:
        """Send a request; this may block while the driver starts."""
        with suppress(BrokenPipeError):  # it has ended, which is noted when its messages end
            self._child.send("request", request)

    def why_silent(self) -> NodeFailure:
        """Why a node without a reply did not reply."""
        remedy = None if self._joined else RUN_ON_A_NODE
        if self._ended:
            return replace(self._ended, remedy=self._ended.remedy or remedy)
        reason = "dstack's driver timed out when it joined the cluster: this host is slow, or its raylet is stopped"
        if self._joined:
            reason = "dstack's driver on the cluster timed out"
        return NodeFailure(reason, "timeout", remedy)

    def close(self) -> None:
        """Ends it, by a signal if it has not ended by itself within a second; Ray then ends its actors.

        This does not block: if this process ends at once, the child ends by itself. But while it joins the
        cluster it may hang in C++ that lets no Python run, and has no actors yet: then it is killed.
        """
        if not self._joined:
            self._child.kill()
        begin(self._end)

    def _end(self) -> None:
        self._child.finish()
        if not self._child.wait(END_S):
            self._child.kill()

    def _serve(self) -> None:
        """Receive its messages until it ends."""
        with suppress(EOFError):
            while True:
                match self._child.receive():
                    case Message("joined"):
                        self._joined = True
                    case Message("ended", why):
                        self._ended = why
                    case Message("reply", reply):
                        self._receive(reply)
        self._ended = self._ended or NodeFailure("dstack's driver on the cluster ended", "ended")
        self._receive(None)
        self._child.wait(END_S)
        self._child.close()


class RemoteProbes:
    """Probe actors on the other nodes of a cluster; starting is immediate, the first sample waits for the start.

    ``driver`` is the module that the child runs.
    """

    def __init__(self, cluster: Cluster, driver: str | None = None) -> None:
        self._results: queue.Queue[tuple[int, str, Result] | None] = queue.Queue()
        self._requests = 0
        self._late: set[str] = set()
        self._driver = ClusterDriver(cluster, self._receive, driver)

    @property
    def has_ended(self) -> bool:
        """Whether they can answer no more."""
        return self._driver.has_ended

    def sample(
        self,
        nodes: dict[str, NodeParts],
        questions: wire.Questions,
        options: wire.SampleOptions,
        raylets: Mapping[str, RayletAddress],
        deadline: float,
        *,
        is_first: bool = True,
    ) -> Iterator[tuple[str, Result]]:
        """The validated answers of the nodes as they arrive, or their failures; ``is_first`` as in a node's request.

        ``nodes`` and the addresses of their ``raylets`` are by node id. Every node yields once: unreachable ones
        soon, slow ones when most have answered for as long again, the others by ``deadline``, a ``time.monotonic()``.
        """
        self._requests += 1
        number = self._requests
        until = max(time.monotonic(), deadline - LAST_WORD_S)
        request = SampleRequest(number, is_first, nodes, questions, options, until)
        missing, reached, failed = set(nodes), nodes.keys() - raylets.keys(), 0
        patience = Patience(len(nodes), deadline)
        begin(lambda: self._driver.request(request))
        begin(lambda: self._give_up_unreachable(number, raylets, missing, reached))
        while missing and not self.has_ended:
            try:
                received = self._results.get(timeout=max(0.0, patience.until - time.monotonic()))
            except queue.Empty:
                break
            if received is None:
                break
            of_request, node_id, result = received
            if of_request == number and node_id in missing:
                missing.discard(node_id)
                self._late.discard(node_id)
                failed += isinstance(result, NodeFailure)
                answered = len(nodes) - len(missing) - failed
                patience.note(answered, failed, are_others_late=missing <= self._late)
                yield node_id, result
        self._late |= missing
        is_given_up = time.monotonic() < deadline and not self.has_ended
        for node_id in sorted(missing):
            yield (
                node_id,
                patience.why_late(is_reached=node_id in reached) if is_given_up else self._driver.why_silent(),
            )

    def close(self) -> None:
        """Ends the probes, without blocking."""
        self._driver.close()

    def _receive(self, reply: Reply | None) -> None:
        self._results.put(reply and (reply.number, reply.node_id, result_of(reply.answer, unpacked)))

    def _give_up_unreachable(
        self, number: int, raylets: Mapping[str, RayletAddress], missing: set[str], reached: set[str]
    ) -> None:
        """Gives up the nodes that do not answer soon and that no connection leads to."""
        time.sleep(SOON_S)
        silent = {node_id: raylets[node_id] for node_id in sorted(missing) if node_id in raylets}
        for node_id, reason in unreachable(silent, reached=reached).items():
            self._results.put((number, node_id, NodeFailure(reason, "unreachable")))


def _environment(cluster: Cluster, *, is_own_python: bool) -> dict[str, str]:
    """The child's environment. Ray does not load a token for an explicit address unless the mode says so.

    Its driver reports no task events: those of the application may be elsewhere than its own would be.
    """
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    environment["RAY_AUTH_MODE"] = "token" if cluster.token else "disabled"
    environment["RAY_task_events_report_interval_ms"] = "0"
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path and is_own_python)
    return environment
