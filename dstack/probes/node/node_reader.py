"""Reads a node for one sample: asks its core workers while it reads its processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dstack.observed_node import NodeAnswer
from dstack.probes.node import wire
from dstack.probes.node.core_workers.asking import CoreWorkers
from dstack.probes.node.core_workers.asking_thread import AskingThread
from dstack.probes.node.probe import NodeProbe


class NodeReader:
    """Answers requests about this node, and keeps what it has learned and connected for the next one.

    ``stubs`` are those of :class:`CoreWorkers`; ``is_guest`` is that of :class:`NodeProbe`.
    """

    def __init__(self, stubs: Callable[[], Any] | None = None, *, is_guest: bool = False) -> None:
        self.probe = NodeProbe(is_guest=is_guest)
        self._core_workers = CoreWorkers(stubs)

    def sample(self, request: wire.NodeRequest) -> NodeAnswer:
        """One sample of this node; without anything to read, only of its core workers."""
        if request["is_first"]:
            self.probe.begin_snapshot()
        deadline = time.monotonic() + request["options"]["deadline_s"]
        asking = AskingThread(self._core_workers, request, deadline)
        answer = asking.finish(self._read(request["targets"], request["options"]))
        return replace(answer, clock=(answer.clock[0], time.time()))

    def close(self) -> None:
        """Ends what still records, and closes the connections to core workers."""
        self.probe.close()
        self._core_workers.close()

    def _read(self, targets: Sequence[wire.Target], options: wire.Options) -> NodeAnswer:
        if targets or options.get("setups_of"):
            return self.probe.sample(targets, options)
        now = time.time()
        return NodeAnswer(clock=(now, now))
