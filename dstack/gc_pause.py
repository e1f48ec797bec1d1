"""Pauses the garbage collector where much is created and little of it is garbage."""

from __future__ import annotations

import gc


class GcPause:
    """A block that imports modules, or takes or explains a snapshot, without garbage collection.

    It saves about a tenth of the time of imports, and a third with a thousand nodes.
    """

    def __enter__(self) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was_enabled:
            gc.enable()
