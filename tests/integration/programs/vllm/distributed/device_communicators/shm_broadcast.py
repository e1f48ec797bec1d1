"""A stand-in for vLLM's message queue: its names, its file's path and the flags of its ring, without ZeroMQ and torch.

Tests import it as vLLM's module, with ``tests/integration/programs`` on the path.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker, shared_memory
from typing import Any
from unittest.mock import patch

pause: Callable[[], None] = lambda: time.sleep(0.05)  # noqa: E731
"""What a waiting end does between two looks at the flags."""


@dataclass
class Handle:
    """What another process needs to open a queue for reading."""

    local_reader_ranks: list[int]
    buffer_handle: tuple[int, int, int, str]


class ShmRingBuffer:
    """Chunks of messages, and behind them for each chunk its flags: written, and read by each reader."""

    def __init__(self, n_reader: int, max_chunk_bytes: int, max_chunks: int, name: str | None = None) -> None:
        self.n_reader, self.max_chunk_bytes, self.max_chunks = n_reader, max_chunk_bytes, max_chunks
        self.metadata_offset = max_chunk_bytes * max_chunks
        size = self.metadata_offset + max_chunks * (1 + n_reader)
        if name is None:
            self.shared_memory = shared_memory.SharedMemory(create=True, size=size)
        else:
            with patch.object(resource_tracker, "register"):  # a reader must not remove it at its end
                self.shared_memory = shared_memory.SharedMemory(name=name)

    @property
    def memory(self) -> memoryview:
        """All chunks, and all flags behind them."""
        assert self.shared_memory.buf is not None
        return self.shared_memory.buf

    def flags(self, index: int) -> memoryview:
        """The flags of a chunk."""
        start = self.metadata_offset + index * (1 + self.n_reader)
        return self.memory[start : start + 1 + self.n_reader]

    def chunk(self, index: int) -> memoryview:
        """The bytes of a chunk."""
        return self.memory[index * self.max_chunk_bytes : (index + 1) * self.max_chunk_bytes]


class MessageQueue:
    """A queue with one writer, which makes it, and readers on its host."""

    def __init__(
        self,
        n_reader: int,
        local_reader_ranks: list[int] | None = None,
        max_chunk_bytes: int = 256,
        max_chunks: int = 4,
    ) -> None:
        self.buffer = ShmRingBuffer(n_reader, max_chunk_bytes, max_chunks)
        own = self.buffer.shared_memory.name
        ranks = local_reader_ranks or list(range(n_reader))
        self.handle = Handle(ranks, (n_reader, max_chunk_bytes, max_chunks, own))
        self.current_idx, self.local_reader_rank, self._is_writer = 0, -1, True

    @classmethod
    def create_from_handle(cls, handle: Handle, rank: int) -> MessageQueue:
        """The end of the reader with this rank."""
        self = cls.__new__(cls)
        self.buffer, self.handle = ShmRingBuffer(*handle.buffer_handle), handle
        self.current_idx, self.local_reader_rank = 0, handle.local_reader_ranks.index(rank)
        self._is_writer = False
        return self

    def enqueue(self, message: Any, timeout: float | None = None) -> None:
        """Write a message, once all readers have read the one that it replaces."""
        data = pickle.dumps(message)
        with self.acquire_write(timeout) as chunk:
            chunk[: len(data)] = data

    def dequeue(self, timeout: float | None = None) -> Any:
        """Read the next message."""
        with self.acquire_read(timeout) as chunk:
            return pickle.loads(chunk)

    @contextmanager
    def acquire_write(self, timeout: float | None) -> Iterator[memoryview]:
        """The next chunk to write."""
        start_time = time.monotonic()
        flags = self.buffer.flags(self.current_idx)
        while flags[0] and not all(flags[1:]):
            if timeout is not None and time.monotonic() > start_time + timeout:
                raise TimeoutError
            pause()
        flags[0] = 0
        yield self.buffer.chunk(self.current_idx)
        flags[1:] = bytes(self.buffer.n_reader)
        flags[0] = 1
        self.current_idx = (self.current_idx + 1) % self.buffer.max_chunks

    @contextmanager
    def acquire_read(self, timeout: float | None) -> Iterator[memoryview]:
        """The next chunk to read."""
        start_time = time.monotonic()
        flags = self.buffer.flags(self.current_idx)
        while not flags[0] or flags[1 + self.local_reader_rank]:
            if timeout is not None and time.monotonic() > start_time + timeout:
                raise TimeoutError
            pause()
        yield self.buffer.chunk(self.current_idx)
        flags[1 + self.local_reader_rank] = 1
        self.current_idx = (self.current_idx + 1) % self.buffer.max_chunks
