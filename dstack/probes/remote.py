"""Node probes on other nodes, through a child process that is the only Ray driver dstack ever starts.

The child can be killed at any time, which is what makes every call to Ray here have a deadline: when it goes, Ray ends
the probe actors it owns. It ends by itself when its standard input closes, so nothing stays if dstack is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from dstack.probes.connect import Cluster

Plain = dict[str, Any]
GRACE_S = 1.0
"""How long the child may take to report what it has after the deadline it was given."""


class RemoteProbes:
    """Probe actors on the other nodes of a cluster; starting is immediate, the first sample waits for the start."""

    def __init__(self, cluster: Cluster) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dstack.probes.remote_driver", cluster.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_environment(cluster),
            start_new_session=True,  # Ctrl-C goes to dstack, which ends the child in order
        )
        self._answers: queue.Queue[Plain | None] = queue.Queue()
        threading.Thread(target=self._read, name="dstack-remote", daemon=True).start()

    def sample(self, targets: dict[str, list[Plain]], options: Plain) -> Iterator[tuple[str, Plain]]:
        """The answers of the nodes as they come: ``NodeProbe.sample``'s, or ``{"failed": reason}``.

        ``targets`` are by node id. Every node yields once, at the latest ``deadline_s`` and a grace from now.
        """
        missing = set(targets)
        deadline = time.monotonic() + options["deadline_s"] + GRACE_S
        self._ask({"targets": targets, "options": options})
        reason = f"its probe did not answer within {options['deadline_s']:.1f} s"
        while missing:
            try:
                answer = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if answer is None:
                reason = "dstack's driver on the cluster ended"
                break
            if "failed_all" in answer:
                reason = answer["failed_all"]
                break
            if answer["node_id"] in missing:
                missing.discard(answer["node_id"])
                yield answer["node_id"], answer["result"]
        for node_id in sorted(missing):
            yield node_id, {"failed": reason}

    def close(self) -> None:
        """Ends the child, in order if it listens within a second, else by force; Ray then ends its actors."""
        with contextlib.suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()
        try:
            self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, request: Plain) -> None:
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put(None)


def _environment(cluster: Cluster) -> dict[str, str]:
    """The child's environment. Ray does not load a token for an explicit address unless the mode says so."""
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    environment["RAY_AUTH_MODE"] = "token" if cluster.token else "disabled"
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return environment
