"""`dstack check` on hosts at random, one after another, with different timeouts."""

from __future__ import annotations

import json
import queue
import random
import subprocess
import threading
import time
from dataclasses import dataclass
from typing import Any

from dstack.collecting.collector import LATE_S
from tests.hosts import Hosts
from tests.hosts.command import dstack

TIMEOUTS_S = (10.0, 20.0, 30.0)
PAUSE_S = (1.0, 6.0)
KILLED_AFTER_S = 60.0
"""A check that runs for so long beyond its limit is killed."""
ON_HEAD = 0.5
"""Share of the checks on the head's host; hosts of the others may be killed meanwhile."""


@dataclass(frozen=True)
class Check:
    """A check that has ended. Its host may have been killed, which ended it."""

    host: int
    timeout_s: float
    began: float
    took_s: float
    code: int | None
    document: dict[str, Any] | None
    error: str
    host_killed: bool

    @property
    def is_late(self) -> bool:
        return self.took_s > self.timeout_s + LATE_S


class Checks:
    """Runs checks in a thread until :meth:`end`; ``results`` has those that have ended."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checks")
        self.results: queue.SimpleQueue[Check] = queue.SimpleQueue()

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Start no more checks, and wait for the last one."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(random.uniform(*PAUSE_S)):
            others = [number for number in list(self._hosts.nodes) if number != 1]
            host = random.choice(others) if others and random.random() > ON_HEAD else 1
            self.results.put(self._check(host, random.choice(TIMEOUTS_S)))

    def _check(self, host: int, timeout_s: float) -> Check:
        arguments = ["check", "--address", self._hosts.address, "--json", f"--timeout={timeout_s:g}"]
        began = time.monotonic()
        code, output, error = None, "", ""
        try:
            done = dstack(self._hosts, host, *arguments, timeout_s=timeout_s + LATE_S + KILLED_AFTER_S)
            code, output, error = done.returncode, done.stdout, done.stderr
        except KeyError:
            error = "the host was killed before"
        except subprocess.TimeoutExpired:
            error = f"killed {KILLED_AFTER_S:g} s after its limit"
        took_s = time.monotonic() - began
        document = json.loads(output) if output.endswith("}\n") else None
        return Check(host, timeout_s, began, took_s, code, document, error.strip(), host not in self._hosts.nodes)
