"""Profiles the cluster of a test that takes long, from a time on; loaded only with ``--dstack-profile``."""

from __future__ import annotations

import threading

from dstack import api
from dstack.errors import DstackError
from dstack.probes.connection.own_cluster import begun_cluster, connected_cluster


class SlowTest:
    """Begins a profile after ``after_s`` seconds, unless the test has ended; a context manager around the test.

    At its end ``text`` is the profile, or why there is none; empty for a fast test, or one without a cluster.
    """

    def __init__(self, after_s: float, address: str | None) -> None:
        self.text = ""
        self._after_s = after_s
        self._address = address
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dstack", daemon=True)

    def __enter__(self) -> SlowTest:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        if self._over.wait(self._after_s):
            return
        try:
            own = connected_cluster()
            if not (address := self._address or (own.address if own else begun_cluster())):
                return
            with api.profile(address) as profile:
                self._over.wait()
            self.text = f"where its time went after {self._after_s:g} s\n{profile.top()}"
        except DstackError as error:
            self.text = f"The test could not be profiled. {error}"
