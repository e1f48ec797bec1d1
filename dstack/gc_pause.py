"""Pauses the garbage collector during imports, where it finds no garbage."""

from __future__ import annotations

import gc


class GcPause:
    """A block that imports modules without garbage collection, which saves about a tenth of the time."""

    def __enter__(self) -> None:
        self._was_enabled = gc.isenabled()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._was_enabled:
            gc.enable()
