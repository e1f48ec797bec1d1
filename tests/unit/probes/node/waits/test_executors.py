"""What waits in the queue of a thread pool is found in its memory."""

from __future__ import annotations

import os
import queue

import pytest

from dstack.probes.node.cpython.memory import open_memory
from dstack.probes.node.waits.executors import Executors
from tests.unit.support.own_process import own_process


@pytest.mark.parametrize("keeps_pages", [False, True])
def test_the_items_of_a_simple_queue_are_found_after_any_number_of_gets(keeps_pages: bool) -> None:
    kept: queue.SimpleQueue[object] = queue.SimpleQueue()
    items = [object() for _ in range(40)]
    for item in items:
        kept.put(item)
    for _ in range(25):
        kept.get()

    with open_memory(os.getpid(), keeps_pages=keeps_pages) as memory:
        found = Executors([], own_process(memory))._items(id(kept))

    assert [item for item in found if item in set(map(id, items))] == list(map(id, items[25:]))
