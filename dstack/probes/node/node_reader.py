"""Reads a node for one sample: asks its core workers while it reads its processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dstack.probes.node import wire
from dstack.probes.node.core_workers import CannotAsk, CoreWorkers, Replies
from dstack.probes.node.probe import NodeProbe

AGAIN_S = 1.0
"""The timeout of a second question to a worker that has answered a moment ago."""


class NodeReader:
    """Answers requests about this node, and keeps what it has learned and connected for the next one.

    ``stubs`` are those of :class:`CoreWorkers`; ``is_guest`` is that of :class:`NodeProbe`.
    """

    def __init__(self, stubs: Callable[[], Any] | None = None, *, is_guest: bool = False) -> None:
        self.probe = NodeProbe(is_guest=is_guest)
        self._core_workers = CoreWorkers(stubs)

    def sample(self, request: wire.NodeRequest) -> wire.Answer:
        """One sample of this node; without anything to read, only of its core workers."""
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(self._ask, request["workers"], request["questions"])
            answer = self._read(request["targets"], request["options"])
            replies = asking.result()
        if isinstance(replies, CannotAsk):
            answer["cannot_ask"] = str(replies)
            return answer
        self._note_jobs(replies, request)
        answer["core_workers"] = replies.found
        answer["failures"] += replies.failures
        return answer

    def _read(self, targets: Sequence[wire.Target], options: wire.Options) -> wire.Answer:
        if targets or options.get("setups_of"):
            return self.probe.sample(targets, options)
        now = time.time()
        return {
            "frames": [],
            "stacks": [],
            "sources": {},
            "processes": {},
            "failures": [],
            "host": {},
            "clock": (now, now),
        }

    def _ask(self, workers: Sequence[wire.CoreWorker], questions: wire.Questions) -> Replies | CannotAsk:
        try:
            return self._core_workers.ask(workers, questions)
        except CannotAsk as error:
            return error

    def _note_jobs(self, replies: Replies, request: wire.NodeRequest) -> None:
        """Asks the workers without a job again: by now they may run for one, even for dstack's own."""
        found = replies.found
        idle = [one for one in request["workers"] if (its := found.get(one["worker_id"])) and its["job_id"] is None]
        if not idle:
            return
        timeout_s = min(AGAIN_S, request["questions"]["timeout_s"])
        briefly: wire.Questions = {
            **request["questions"],
            "timeout_s": timeout_s,
            "limit": 1,
            "details": False,
            "with_refs": False,
        }
        for worker_id, data in self._core_workers.ask(idle, briefly).found.items():
            found[worker_id]["job_id"], found[worker_id]["actor_id"] = data["job_id"], data["actor_id"]
