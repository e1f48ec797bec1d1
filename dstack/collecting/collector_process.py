"""The process that holds a session, takes its snapshots and polls its cluster for the collector.

Its argument is the module of dstack's driver, empty for the usual one. It receives ``take`` and ``poll`` messages (see
:mod:`dstack.processes.child`) with :class:`dstack.collecting.collector.Request` as JSON. It replies to ``take`` with
``progress``, the current step, then ``early``, a snapshot with the first sample, if a second one follows, and
``snapshot``, one without the samples that it has sent; to ``poll`` with ``poll``, a
:class:`dstack.model.snapshot.ClusterPoll`; or to both with ``error``. It ends with its standard input, and with its
parent.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import time
from typing import IO, TYPE_CHECKING, Any

from dstack.collecting.collector import LONGER, Request
from dstack.errors import ClusterError
from dstack.processes.child import Messages, send, send_error
from dstack.processes.gc_pause import GcPause

if TYPE_CHECKING:
    from dstack.model.snapshot import Snapshot
    from dstack.probes.node_access.session import ProbeSession


def main(replies: IO[bytes], arguments: list[str]) -> None:
    """Serves requests until standard input ends, as the module's docstring describes."""
    with contextlib.suppress(BrokenPipeError):  # the parent has ended
        server = _Server(replies, arguments[0] or None)
        for message in Messages(sys.stdin.buffer):
            server.serve(message.kind, json.loads(message.payload))
            gc.collect()  # parts of an analysis refer to each other, and may hold a whole sample
        server.close()


class _Server:
    """Answers the requests of a session."""

    def __init__(self, replies: IO[bytes], driver: str | None) -> None:
        self._replies = replies
        self._driver = driver
        self._session: ProbeSession | None = None

    def serve(self, kind: str, request: Request) -> None:
        """Answers one request. Raises :class:`BrokenPipeError`."""
        try:
            with GcPause():
                send(self._replies, *(self._taken(request) if kind == "take" else self._polled(request)))
        except Exception as error:
            send_error(self._replies, error)

    def close(self) -> None:
        """Ends the session."""
        if self._session is not None:
            self._session.close()

    def _opened(self) -> ProbeSession:
        if self._session is None:
            from dstack.collecting import capture  # noqa: F401  # loaded for later
            from dstack.probes.node_access.session import ProbeSession

            self._session = ProbeSession(self._driver)
            gc.freeze()  # loaded modules stay: the garbage collector need not scan them again
        return self._session

    def _taken(self, request: Request) -> tuple[str, bytes]:
        session = self._opened()
        from msgspec.structs import replace

        from dstack.collecting import capture
        from dstack.files.snapshot_file import dumps

        sent = 0

        def early(snapshot: Snapshot) -> None:
            nonlocal sent
            sent = len(snapshot.samples)
            send(self._replies, "early", dumps(snapshot))

        left_s = min(request["timeout_s"], request["deadline"] - (request["watch_s"] or 0.0) - time.monotonic())
        if left_s <= 0:
            raise ClusterError("The start of dstack took longer than the timeout.", LONGER)
        given = {"watch_s": request["watch_s"], "history": request["history"]}
        terms: dict[str, Any] = {name: value for name, value in given.items() if value}
        taken = capture.take(
            session,
            request["address"],
            timeout_s=left_s,
            progress=lambda text: send(self._replies, "progress", text.encode("utf-8", "replace")),
            early=early,
            **dict.fromkeys(request["options"], True),
            **terms,
        )
        return "snapshot", dumps(replace(taken, samples=taken.samples[sent:]))

    def _polled(self, request: Request) -> tuple[str, bytes]:
        session = self._opened()
        from dstack.files.document_file import to_json
        from dstack.probes.polling import poll_cluster

        polled = poll_cluster(
            session, request["address"], request["timeout_s"], **dict.fromkeys(request["options"], True)
        )
        return "poll", to_json(polled)
