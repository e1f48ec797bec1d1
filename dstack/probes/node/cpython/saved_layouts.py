"""CPython's structure offsets by minor version, for targets that run another version than their reader.

Written by ``python -m tests.versions.write_saved_layouts``, which calibrated x86-64 builds with glibc. A test compares
each with the interpreter that runs it. Calibrated versions: 3.10.13, 3.11.7, 3.11.2, 3.12.1, 3.13.0, 3.14.8.
"""

from __future__ import annotations

from typing import Any

from dstack.probes.node.cpython.coroutine_layout import CoroutineLayout
from dstack.probes.node.cpython.layout import Layout
from dstack.probes.node.cpython.task_lists import TaskLists

# A row for each field of a layout, with a column for each version.
_LAYOUT: dict[str, tuple[Any, ...]] = {
    "version": ((3, 10), (3, 11), (3, 12), (3, 13), (3, 14)),
    "runtime_interpreter": (32, 40, 40, 632, 808),
    "interpreter_threads": (8, 16, 72, 7344, 7344),
    "thread_next": (8, 8, 8, 8, 8),
    "thread_id": (176, 152, 136, 152, 152),
    "thread_frame": ((24,), (56, 8), (56, 0), (72,), (72,)),
    "frame_previous": (24, 48, 8, 8, 8),
    "frame_code": (32, 32, 0, 0, 0),
    "frame_instruction": (96, 56, 56, 56, 56),
    "frame_locals": (352, 72, 72, 72, 80),
    "code_file": (104, 112, 112, 112, 112),
    "code_function": (112, 120, 120, 120, 120),
    "code_names": ((72, 88, 80), (96,), (96,), (96,), (96,)),
    "code_stack_size": (32, 68, 64, 64, 64),
    "code_start": (48, 184, 192, 200, 208),
    "code_exceptions": (None, 40, 40, 40, 40),
    "cached_keys": (None, 872, 880, 880, 880),
    "rlock_owner": (24, 24, 24, 24, 24),
    "queue_items": (32, 32, 32, 40, 40),
}
_COROUTINES: dict[str, tuple[Any, ...]] = {
    "interpreter_modules": (856, 888, 944, 7656, 7688),
    "generator_frame": (16, 80, 72, 72, 72),
    "generator_state": (None, 75, 67, 67, 67),
    "generator_qualname": (48, 40, 32, 32, 32),
    "frame_stack_top": (80, 64, 64, 64, 64),
    "code_first_line": (40, 72, 68, 68, 68),
    "code_lines": (120, 136, 136, 136, 136),
    "code_qualname": (None, 128, 128, 128, 128),
    "function_code": (48, 48, 48, 48, 48),
    "function_closure": (72, 72, 72, 72, 72),
    "function_qualname": (40, 40, 40, 40, 40),
    "send_generator": (16, 16, 16, 16, 16),
    "wrapper_coroutine": (16, 16, 16, 16, 16),
    "iterator_future": (16, 16, 16, 16, 16),
    "future_loop": (16, 16, 16, 16, 16),
    "future_callback": (24, 24, 24, 24, 24),
    "future_callbacks": (40, 40, 40, 40, 40),
    "future_state": (88, 88, 88, 96, 104),
    "task_waiter": (152, 128, 128, 112, 120),
    "task_coroutine": (160, 136, 136, 120, 128),
    "task_name": (168, 144, 144, 128, 136),
    "task_context": (176, 152, 152, 136, 144),
    "context_variables": (24, 24, 24, 24, 24),
    "variable_name": (16, 16, 16, 16, 16),
    "task_lists": (
        None,
        None,
        None,
        None,
        TaskLists(task_node=152, thread_tasks=880, thread_loop=864, thread_task=872, interpreter_tasks=10880),
    ),
    "task_cancels": (None, 168, 168, 104, 112),
}


def _column(rows: dict[str, tuple[Any, ...]], index: int) -> dict[str, Any]:
    return {field: row[index] for field, row in rows.items()}


TABLES = {
    version: Layout(coroutines=CoroutineLayout(**_column(_COROUTINES, index)), **_column(_LAYOUT, index))
    for index, version in enumerate(_LAYOUT["version"])
}
