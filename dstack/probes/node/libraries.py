"""The hooks of a probe for libraries, each with the rooms of the libraries that have it.

Nothing else on a node imports a room, but what is common to process groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dstack.libraries.compiled_graphs import reading as compiled_graphs
from dstack.libraries.compiled_graphs.reading import stages_of
from dstack.libraries.data import reading as data
from dstack.libraries.serve.reading import ServeRequests
from dstack.libraries.train import reading as train
from dstack.observed.calls import Call
from dstack.probes.node.cpython.frames import Frame
from dstack.probes.node.cpython.objects import Objects

OfThread = Callable[[Objects, Sequence[Frame], Call | None, str], Call | None]
"""The call of a thread with what it needs, by its frames, leaf first, and the id of the actor whose method it runs.

Any other call is returned unchanged. Raises ``Unreadable``.
"""
OfCoroutine = Callable[[Objects, Sequence[Frame], str], Call | None]
"""The call of a coroutine, by its frames and the id of its actor; None for any other. Raises ``Unreadable``."""

OF_THREADS: Sequence[OfThread] = (compiled_graphs.completed, data.completed)
OF_COROUTINES: Sequence[OfCoroutine] = (train.awaited, compiled_graphs.awaited)

__all__ = ["OF_COROUTINES", "OF_THREADS", "ServeRequests", "stages_of"]
