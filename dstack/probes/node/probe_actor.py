"""What runs as a Ray actor on another node, and ends by itself when it is not used."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dstack.probes.node import wire
from dstack.probes.node.node_reader import NodeReader
from dstack.probes.node.packing import packed

IDLE_S = 60.0
"""How long a probe stays without a request: a session that is used keeps it, one that is forgotten does not."""


class ProbeActor:
    """The probe of a node. Its process ends ``idle_s`` after the end of its last request."""

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._reader = NodeReader(is_guest=True)
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._used_at = time.monotonic()
        threading.Thread(target=self._end_when_idle, name="dstack-idle", daemon=True).start()

    def has_pyspy(self) -> bool:
        """Whether this node has a py-spy of its own."""
        return self._reader.probe.has_pyspy()

    def equip(self, binary: bytes) -> None:
        """Provide a py-spy, as the bytes of its executable, to a node without one."""
        self._reader.probe.equip(binary)

    def sample(self, request: wire.NodeRequest) -> bytes:
        """One sample of this node, packed."""
        with self._in_use():
            return packed(self._reader.sample(request))

    def record(self, targets: Sequence[wire.Target], options: wire.RecordOptions) -> bytes:
        """One round of a recording of this node, packed."""
        with self._in_use():
            return packed(self._reader.probe.record(targets, options))

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            finally:
                self._used_at = time.monotonic()

    def _end_when_idle(self) -> None:
        while True:
            time.sleep(max(0.0, self._used_at + self._idle_s - time.monotonic()))
            with self._lock:
                if time.monotonic() >= self._used_at + self._idle_s:
                    os._exit(0)
