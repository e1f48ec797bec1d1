"""This process as a target of the memory readers, in its real memory or in a stand-in."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import gc
import os

from dstack.probes.node.asyncio.event_loops import ALL_TASKS
from dstack.probes.node.cpython.hashes import SECRET_BYTES, Hashes
from dstack.probes.node.cpython.layouts import CPythonLayout
from dstack.probes.node.cpython.memory import ProcessMemory, open_memory
from dstack.probes.node.cpython.memory_frames import Frames
from dstack.probes.node.cpython.objects import Objects
from dstack.probes.node.cpython.python_process import Interpreter, OwnPython, PythonProcess
from dstack.probes.node.procfs import proc


@functools.cache
def own_interpreter() -> Interpreter:
    """The Python interpreter of this process."""
    return Interpreter(None, OwnPython(), proc.mapped_files(os.getpid()))


@functools.cache
def own_layout() -> CPythonLayout:
    """The struct offsets of this interpreter."""
    with open_memory(os.getpid()) as memory:
        return own_interpreter().layout(memory)


@functools.cache
def own_hashes() -> Hashes:
    """The hashes of names in this process."""
    address = own_interpreter().hash_secret()
    assert address is not None
    return Hashes(ctypes.string_at(address, SECRET_BYTES))


def own_objects(memory: ProcessMemory) -> Objects:
    """The objects in this memory."""
    return Objects(memory, own_layout(), own_hashes())


def own_frames(memory: ProcessMemory) -> Frames:
    """The threads and frames in this memory."""
    return Frames(own_objects(memory), own_interpreter().runtime())


def own_process(memory: ProcessMemory, objects: Objects | None = None, frames: Frames | None = None) -> PythonProcess:
    """The Python process in this memory, optionally with other readers of objects and frames."""
    process = PythonProcess(memory, own_interpreter(), os_thread_ids=proc.threads(os.getpid()))
    if objects is not None:
        process.__dict__["objects"] = objects
    if frames is not None:
        process.__dict__["frames"] = frames
    return process


def forget_ended_tasks() -> None:
    """Remove the asyncio tasks of earlier tests that have ended and are still referenced, as by their exceptions."""
    gc.collect()
    for tasks in (vars(asyncio.tasks).get(name, ()) for name in ALL_TASKS):
        for task in [one for one in tasks if one.done()]:
            tasks.discard(task)
