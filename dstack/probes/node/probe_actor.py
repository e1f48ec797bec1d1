"""The Ray actor that samples a node for dstack on another host."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.wire import NodeRequest, ReadTarget, RecordOptions, packed

IDLE_S = 60.0
"""How long a probe stays in the cluster without a call."""
CLOSE_S = 2.0
"""How long its orderly end may take."""


class ProbeActor:
    """Samples its node, and ends its process after ``idle_s`` seconds without a call.

    So it does not outlive a session whose driver is gone without Ray noticing. Its caller starts another one.
    """

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._probe = NodeProbe(is_guest=True)
        self._watchdog = Watchdog(idle_s, self._probe.close)

    def needs_pyspy_for(self) -> str:
        """The machine that a py-spy for this node must be built for; empty if the node has one."""
        with self._watchdog.call():
            return self._probe.needs_pyspy_for()

    def equip(self, binary: bytes) -> None:
        """Provide a py-spy, as the bytes of its executable, to a node without one."""
        with self._watchdog.call():
            self._probe.equip(binary)

    def sample(self, request: NodeRequest) -> bytes:
        """One sample as a packed :class:`~dstack.observed.node.NodeAnswer`, see :func:`packed`."""
        with self._watchdog.call():
            return packed(self._probe.answer(request))

    def record(self, targets: Sequence[ReadTarget], options: RecordOptions) -> bytes:
        """One round of a recording of the target processes, as a packed :class:`RecordedRound`."""
        with self._watchdog.call():
            return packed(self._probe.record(targets, options))


class Watchdog:
    """Ends this process when no call has run for ``idle_s`` seconds; before, it runs ``close``."""

    def __init__(self, idle_s: float, close: Callable[[], None]) -> None:
        self._idle_s = idle_s
        self._close = close
        self._running = 0
        self._idle_since = time.monotonic()
        self._lock = threading.Lock()
        threading.Thread(target=self._watch, name="dstack-watchdog", daemon=True).start()

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call: while it runs, the process does not end."""
        with self._lock:
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1
                self._idle_since = time.monotonic()

    def _watch(self) -> None:
        while True:
            time.sleep(self._remaining_s())
            with self._lock:  # a call that comes now waits, and fails with the process
                if self._remaining_s() <= 0:
                    self._end()

    def _end(self) -> None:
        closing = threading.Thread(target=self._close, name="dstack-close", daemon=True)
        closing.start()
        closing.join(CLOSE_S)
        os._exit(0)  # an orderly exit of a Ray worker may wait for its raylet

    def _remaining_s(self) -> float:
        """The time until the process may end; at least a full period while a call runs."""
        if self._running:
            return self._idle_s
        return max(0.0, self._idle_since + self._idle_s - time.monotonic())
