"""Ray Data's ``streaming_split``: the readers of its splits, which wait for each other before each epoch.

For each of them a thread of the dataset's coordinator, an actor, polls until all splits are read. Seen on Ray 2.60.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from dstack.libraries.train.reading import MAX_RANKS
from dstack.observed.calls import DATA, Call, GroupCall, ProcessGroup
from dstack.probes.node.cpython.memory import UnreadableMemory
from dstack.probes.node.cpython.memory_frames import MemoryFrame
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.thread_stacks import is_in

MEETING = ("/ray/data/_internal/iterator/stream_split_iterator.py", "_barrier")
"""The method of the coordinator in which a thread waits for the other splits."""


def completed(objects: Objects, frames: Sequence[MemoryFrame], call: Call | None, actor_id: str) -> Call | None:
    """The call with the splits that it waits for, if it is such a wait that can be read, in the actor of this id."""
    if call is None or not actor_id or not frames or not is_in(frames[0], *MEETING):
        return call
    split = count = None
    with contextlib.suppress(UnreadableMemory):
        split = objects.number(frames[0].local("split_idx"))
        count = objects.number(objects.attribute(frames[0].local("self"), "_n"))
    if split is None or count is None or not 0 <= split < count <= MAX_RANKS:
        return call
    ranks = tuple(range(int(count)))
    group = ProcessGroup(library=DATA, world=actor_id, name="", rank=int(split), ranks=ranks)
    return replace(call, timeout_s=None, need=GroupCall(operation="start_epoch", group=group))
