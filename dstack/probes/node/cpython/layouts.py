"""Where CPython keeps what dstack reads: the offsets that differ between its minor versions, as data.

A row has one column for each version. A new version is one more column, see "A new Python version" in
``CONTRIBUTING.md``. ``tests/versions/calibration.py`` derives a column from the objects of a running interpreter, and a
test compares it with every Python of the machine. From CPython 3.13 on, a process states some offsets itself
(:mod:`dstack.probes.node.cpython.debug_offsets`), and the table serves for the others. Offsets that are the same in all
versions are constants of the modules that use them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields
from typing import Any

Version = tuple[int, int]
OWN_VERSION = sys.version_info[:2]


def row(*columns: Any, stated: str = "") -> Any:
    """A field of the layout: its value in each version, and its name among the offsets that a process states itself."""
    return field(metadata={"columns": columns, "stated": stated})


@dataclass(frozen=True)
class TaskLists:
    """Offsets of the lists of asyncio's tasks from CPython 3.14 on, where each thread has those that it created.

    A list is circular: its head and a node in each task point to the next and the previous node. Tasks of a thread that
    ended are in a list of the interpreter. At ``thread_loop`` and ``thread_task`` are the event loop that a thread runs
    and its current task, or 0.
    """

    task_node: int
    thread_tasks: int
    thread_loop: int
    thread_task: int
    interpreter_tasks: int


BEHIND_MUTEXES = {"x86_64": 0, "aarch64": 16}
"""What a machine adds to ``interpreter_tasks``, which is behind the two mutexes of the GIL. Each has 40 bytes on x86-64
and 48 on aarch64. Calibrated with CPython 3.14.8."""

_LISTS_3_14 = TaskLists(task_node=152, thread_tasks=880, thread_loop=864, thread_task=872, interpreter_tasks=10880)
_LISTS_3_15 = TaskLists(task_node=152, thread_tasks=1048, thread_loop=1024, thread_task=1032, interpreter_tasks=10856)


@dataclass(frozen=True)
class CPythonLayout:
    """The layout of one minor ``version`` of CPython with the GIL; offsets in bytes, None without the field.

    It is the same on x86-64 and aarch64, but for :data:`BEHIND_MUTEXES`. A generator here is any of generator,
    coroutine and asynchronous generator.
    """

    version: tuple[int, int] = row((3, 10), (3, 11), (3, 12), (3, 13), (3, 14), (3, 15))

    # The interpreter and its threads. ``thread_frame`` leads from a thread state to its innermost frame, one offset for
    # each pointer: on 3.11 and 3.12 through a struct in between.
    runtime_interpreter: int = row(32, 40, 40, 632, 808, 936, stated="runtime_state.interpreters_head")
    interpreter_threads: int = row(8, 16, 72, 7344, 7344, 7336, stated="interpreter_state.threads_head")
    interpreter_modules: int = row(856, 888, 944, 7656, 7688, 7592, stated="interpreter_state.imports_modules")
    thread_next: int = row(8, 8, 8, 8, 8, 8, stated="thread_state.next")
    thread_id: int = row(176, 152, 136, 152, 152, 176, stated="thread_state.thread_id")
    thread_frame: tuple[int, ...] = row(
        (24,), (56, 8), (56, 0), (72,), (72,), (72,), stated="thread_state.current_frame"
    )

    # A frame. Its instruction is an address, or on 3.10 a number. At ``frame_stack_top`` is the number of words in use,
    # from 3.14 on a pointer behind them. What a suspended frame awaits is the ``awaited_from_top``-th word before
    # that: from 3.15 on a word of the iteration follows it.
    frame_previous: int = row(24, 48, 8, 8, 8, 8, stated="interpreter_frame.previous")
    frame_code: int = row(32, 32, 0, 0, 0, 0, stated="interpreter_frame.executable")
    frame_globals: int = row(48, 8, 24, 24, 24, 24)
    frame_instruction: int = row(96, 56, 56, 56, 56, 56, stated="interpreter_frame.instr_ptr")
    frame_locals: int = row(352, 72, 72, 72, 80, 80, stated="interpreter_frame.localsplus")
    frame_stack_top: int = row(80, 64, 64, 64, 64, 64, stated="interpreter_frame.stackpointer")
    awaited_from_top: int = row(1, 1, 1, 1, 1, 2)

    # A code object. ``code_names`` are the tuples of the names of locals, cells and free variables.
    code_file: int = row(104, 112, 112, 112, 112, 112, stated="code_object.filename")
    code_function: int = row(112, 120, 120, 120, 120, 120, stated="code_object.name")
    code_qualname: int | None = row(None, 128, 128, 128, 128, 128, stated="code_object.qualname")
    code_names: tuple[int, ...] = row(
        (72, 88, 80), (96,), (96,), (96,), (96,), (96,), stated="code_object.localsplusnames"
    )
    code_first_line: int = row(40, 72, 68, 68, 68, 68, stated="code_object.firstlineno")
    code_lines: int = row(120, 136, 136, 136, 136, 136, stated="code_object.linetable")
    code_stack_size: int = row(32, 68, 64, 64, 64, 64)
    code_exceptions: int | None = row(None, 40, 40, 40, 40, 40)
    code_start: int = row(48, 184, 192, 200, 208, 208, stated="code_object.co_code_adaptive")

    # Functions, generators and what wraps them. At ``generator_frame`` is a pointer to the frame on 3.10, the frame
    # itself later. On 3.10 the frame has the state. ``suspended_states`` are those of a generator that has begun; the
    # last one if it awaits or yields from.
    function_code: int = row(48, 48, 48, 48, 48, 48)
    function_closure: int = row(72, 72, 72, 72, 72, 72)
    function_qualname: int = row(40, 40, 40, 40, 40, 40)
    generator_frame: int = row(16, 80, 72, 72, 72, 72, stated="gen_object.gi_iframe")
    generator_state: int | None = row(None, 75, 67, 67, 67, 67, stated="gen_object.gi_frame_state")
    generator_qualname: int = row(48, 40, 32, 32, 32, 32)
    created_state: int = row(-2, -2, -2, -3, -3, 0)
    suspended_states: tuple[int, ...] = row((-1,), (-1,), (-1,), (-2, -1), (-2, -1), (1, 2))
    send_generator: int = row(16, 16, 16, 16, 16, 16)
    wrapper_coroutine: int = row(16, 16, 16, 16, 16, 16)
    iterator_future: int = row(16, 16, 16, 16, 16, 16)

    # asyncio. At ``task_cancels`` is how often a task was asked to be cancelled.
    future_loop: int = row(16, 16, 16, 16, 16, 16)
    future_callback: int = row(24, 24, 24, 24, 24, 24)
    future_callbacks: int = row(40, 40, 40, 40, 40, 40)
    future_state: int = row(88, 88, 88, 96, 104, 104)
    task_waiter: int = row(152, 128, 128, 112, 120, 120)
    task_coroutine: int = row(160, 136, 136, 120, 128, 128)
    task_name: int = row(168, 144, 144, 128, 136, 136)
    task_context: int = row(176, 152, 152, 136, 144, 144)
    task_cancels: int | None = row(None, 168, 168, 104, 112, 112)
    task_lists: TaskLists | None = row(None, None, None, None, _LISTS_3_14, _LISTS_3_15)  # noqa: RUF009
    context_variables: int = row(24, 24, 24, 24, 24, 24)
    variable_name: int = row(16, 16, 16, 16, 16, 16)

    # Other objects. ``text_headers`` are the bytes before the characters of an ASCII string, and of any other. At
    # ``cached_keys`` a type has the names of its instances' attributes.
    tuple_items: int = row(24, 24, 24, 24, 32, 32)
    text_headers: tuple[int, int] = row((48, 72), (48, 72), (40, 56), (40, 56), (40, 56), (40, 56))
    cached_keys: int | None = row(None, 872, 880, 880, 880, 888, stated="heap_type_object.ht_cached_keys")
    rlock_owner: int = row(24, 24, 24, 24, 24, 24)
    queue_items: int = row(32, 32, 32, 40, 40, 40)


_COLUMNS = zip(*(one.metadata["columns"] for one in fields(CPythonLayout)), strict=True)
LAYOUTS: dict[Version, CPythonLayout] = {layout.version: layout for layout in (CPythonLayout(*one) for one in _COLUMNS)}
