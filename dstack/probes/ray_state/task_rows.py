"""The rows of the GCS's task events: when a task entered its states, and with which error and where it failed.

``error_info.error_message`` has the last 500 characters of an exception's traceback (Ray 2.60), and the event
``task:execute`` of the executor has type, value and traceback as JSON. What cannot be parsed is left out. Seen on Ray
2.46 and 2.60.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec

from dstack.model.snapshot import FailedTask
from dstack.probes.connection.ray_stubs import common_pb2
from dstack.probes.node.stacks.origins import PACKAGES, STANDARD
from dstack.probes.ray_state.control_plane import GUESSES

LATEST = 253_370_764_799.0
"""The end of the calendar; later times are invalid."""
MAX_TASKS = 200
MAX_ERROR = 300
"""The most characters of a message."""
MAX_DETAILS = 200_000
"""Longer descriptions are not parsed."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PLACE = re.compile(r'^\s*File "(.+)", line (\d{1,9}), in .*(?:\n    +(\S.*))?', re.MULTILINE)
_CLASS = re.compile(r"<class '(?:.*\.)?(.+)'>")
_CAUSE = re.compile(r"^(?:The above exception was the direct cause|During handling of the above exception)", re.M)


class _Details(msgspec.Struct):
    """The exception in an executor's event of a task."""

    type: str = ""
    value: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a traceback; ``source`` is its text, if the executor had the file."""

    file: str
    line: int
    source: str | None = None


_DETAILS = msgspec.json.Decoder(_Details)


def failed_tasks(rows: Iterable[Any]) -> tuple[FailedTask, ...]:
    """The newest failed tasks, each with its last failed attempt; a later attempt may be running."""
    latest: dict[str, FailedTask] = {}
    for row in rows:
        task = _failed_task(row)
        known = latest.get(task.task_id)
        if known is None or known.attempt < task.attempt:
            latest[task.task_id] = task
    newest_first = sorted(latest.values(), key=lambda task: (-(task.failed_at or 0.0), task.task_id))
    return tuple(newest_first[:MAX_TASKS])


def _failed_task(row: Any) -> FailedTask:
    info, state = row.task_info, row.state_updates
    details, message = _details(row), _message(row)
    place = innermost_place((details.traceback if details else "") or message)
    return FailedTask(
        task_id=row.task_id.hex(),
        name=info.name or info.func_or_class_name,
        job_id=row.job_id.hex(),
        error_type=_error_type(state.error_info.error_type),
        error=_first_line(details, message),
        failed_at=event_time(state.state_ts_ns.get(common_pb2.FAILED)),
        attempt=row.attempt_number,
        actor_id=info.actor_id.hex() or None,
        parent_task_id=info.parent_task_id.hex() or None,
        worker_id=state.worker_id.hex() or None,
        node_id=state.node_id.hex() or None,
        pid=state.worker_pid or None,
        file=place.file if place else None,
        line=place.line if place else None,
        source=place.source if place else None,
    )


def error_of(row: Any) -> tuple[str, str]:
    """Ray's name of the error of a failed attempt, and the exception with the first line of its message."""
    return _error_type(row.state_updates.error_info.error_type), _first_line(_details(row), _message(row))


def _message(row: Any) -> str:
    return _COLOUR.sub("", row.state_updates.error_info.error_message)


def _first_line(details: _Details | None, message: str) -> str:
    return (raised(details) if details else "") or first_line_of_error(message)


def _details(row: Any) -> _Details | None:
    """The first description of an exception among a task's events."""
    texts = (event.extra_data for event in row.profile_events.events if event.event_name == "task:execute")
    return next((found for text in texts if (found := _parsed(text))), None)


def _parsed(text: str) -> _Details | None:
    if not 2 < len(text) <= MAX_DETAILS:
        return None
    try:
        details = _DETAILS.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    return details if details.type else None


def raised(details: Any) -> str:
    """``ValueError: no such batch``: the class without its module, and the first line of the message.

    The value of an exception that another task raised before is the whole traceback of that one.
    """
    match = _CLASS.fullmatch(details.type)
    name = match[1] if match else details.type
    value = _COLOUR.sub("", details.value)
    if _PLACE.search(value) or value.startswith("ray::"):
        return first_line_of_error(value)
    return _short(f"{name}: {value}" if value.strip() else name)


def first_line_of_error(message: str) -> str:
    """The line that names the exception, after the last frame of the traceback; else the first line.

    Of a message with several lines, it is the first.
    """
    lines = message.splitlines()
    last_place = max((i for i, line in enumerate(lines) if _PLACE.match(line)), default=-1)
    after = [line for line in lines[last_place + 1 :] if line.strip()]
    if last_place >= 0:
        return _short(next((line for line in after if not line[0].isspace()), ""))
    plain = (line for line in after if not line.startswith(("User exception:", "ray::")))
    return _short(next((line for line in plain if line.strip(" ^~")), ""))


def _short(text: str) -> str:
    """The first line, without the list of possible causes of a worker's death."""
    return (text.strip().splitlines() or [""])[0].partition(GUESSES)[0].strip()[:MAX_ERROR]


def innermost_place(traceback: str) -> Place | None:
    """The innermost frame of the user's code, in the last exception."""
    raised_last = _CAUSE.split(traceback)[-1]
    places = (Place(match[1], int(match[2]), match[3]) for match in _PLACE.finditer(raised_last))
    own = [place for place in places if _is_users(place.file)]
    return own[-1] if own else None


def _is_users(file: str) -> bool:
    """Whether a file is neither Ray's, nor of an installed package or the standard library."""
    is_installed = PACKAGES.search(file) or STANDARD.match(file)
    return not is_installed and not file.startswith(("python/ray/", "<"))


def _error_type(number: int) -> str:
    """Ray's name of an error type; empty for an unknown number."""
    named: Iterator[tuple[str, int]] = iter(common_pb2.ErrorType.items())
    return next((name for name, value in named if value == number), "")


@cache
def _state_names() -> dict[int, str]:
    return dict(zip(common_pb2.TaskStatus.values(), common_pb2.TaskStatus.keys(), strict=True))


def states_of(ts_ns: Any) -> dict[str, float]:
    """Unix seconds by state, without invalid states and times."""
    known = _state_names()
    times = ((state, event_time(ns)) for state, ns in ts_ns.items() if state in known)
    return {known[state]: seconds for state, seconds in times if seconds is not None}


def event_time(ns: int | None) -> float | None:
    """Unix seconds of a time in task events; None if it is absent or invalid."""
    seconds = (ns or 0) / 1e9
    return seconds if 0 < seconds < LATEST else None
