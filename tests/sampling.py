"""Samples of real processes by a node's probe in this process."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields, is_dataclass
from typing import Any, cast

import msgspec

from dstack.call_sites import kind_of, name_of
from dstack.observed import calls
from dstack.observed.calls import Awaitables, Call, Children, Futures, GroupCall, ProcessGroup, Refs, Unreadable
from dstack.observed.node import NodeAnswer, RecordedRound
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.wire import ForeignPython, ReadTarget, RecordOptions, SampleOptions, UnreadablePython

Plain = dict[str, Any]
"""A part of a :class:`~dstack.observed.node.NodeAnswer`, of which tests pick fields by variable names."""

OPTIONS: SampleOptions = {
    "native": False,
    "locals": False,
    "pause": False,
    "children": False,
    "deadline_s": 60.0,
}

IN_RAY_GET = """
import time
class Worker:
    def get_objects(self, object_refs, timeout):
        print("ready", flush=True)
        time.sleep(1000)
Worker().get_objects([object()], -1)
"""
"""A program whose innermost frame has the name that a call of ``ray.get`` has."""


GROUP_WORDS = ("library", "world", "name", "rank", "ranks", "description")


def target(
    pid: int, worker_id: str = "w", *, port: int = 0, python: ForeignPython | UnreadablePython | None = None
) -> ReadTarget:
    """A driver; ``python`` is the result of :func:`dstack.probes.node_access.targets.foreign_python` for it."""
    found: ReadTarget = {"worker_id": worker_id, "pid": pid, "port": port, "is_driver": True}
    if python is not None:
        found["python"] = python
    return found


def sample(*targets: ReadTarget, probe: NodeProbe | None = None, **options: Any) -> Plain:
    """The answer of ``probe``, or of a new one, with some options changed."""
    changed = cast(SampleOptions, {**OPTIONS, **options})
    return plain((probe or NodeProbe()).sample(targets, changed))


def plain(answer: NodeAnswer | RecordedRound) -> Plain:
    """An answer as plain data, with all of its fields; calls and what is in them are the observed values."""
    return cast(Plain, _plain(answer))


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _ if is_dataclass(value) and type(value).__module__ != calls.__name__:
            return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        case _:
            return value


def words_of(call: Call | None) -> Plain:
    """A call in the words in which the programs of tests print theirs; none for no call."""
    if call is None:
        return {}
    need = {field.name: _listed(getattr(call.need, field.name)) for field in fields(cast(Any, call.need))}
    words = {name: value for name, value in need.items() if name != "kind"}
    words |= {"kind": kind_of(call), "what": name_of(call), "frame": call.frame, "timeout_s": call.timeout_s}
    match call.need:
        case Refs() | Awaitables():
            return {**words, "num_returns": call.need.count, "all_of": need.get("futures", [])}
        case Futures():
            return {**words, "all_of": need["each"]}
        case Children():
            return {**words, "child_pids": need["pids"]}
        case Unreadable():
            return {**words, "unread": call.need.reason}
        case GroupCall():
            own = {name: need[name] for name in ("operation", "peer", "mark", "fails_at")}
            return {**words, "of_group": {**own, "group": words_of_group(call.need.group)}}
        case _:
            return words


def words_of_group(group: ProcessGroup) -> Plain:
    """A process group in the words in which the programs of tests print theirs."""
    left = {"has_left": True} if group.has_left else {}
    return {name: _listed(getattr(group, name)) for name in GROUP_WORDS} | left


def _listed(value: Any) -> Any:
    """A value of a need as JSON has it."""
    return json.loads(msgspec.json.encode(value))


def functions(answer: Plain, thread: Plain) -> list[str]:
    """The unqualified names of a thread's functions, leaf first."""
    frames = (answer["frames"][index] for index in answer["stacks"][thread["stack"]])
    return [frame["function"].rpartition(".")[2] for frame in frames]


def frames_of(answer: Plain, thread: Plain) -> list[tuple[str, str, int]]:
    """File, qualified name and line of a thread's frames, leaf first."""
    frames = (answer["frames"][index] for index in answer["stacks"][thread["stack"]])
    return [(frame["file"], frame["function"], frame["line"]) for frame in frames]


RECORD_OPTIONS: RecordOptions = {
    "rate_hz": 50.0,
    "seconds": 1.0,
    "idle": False,
    "gil": False,
    "native": False,
    "is_last": False,
}


def record(*targets: ReadTarget, probe: NodeProbe | None = None, **options: Any) -> Plain:
    """One round of a recording by ``probe``, or by a new one, with some options changed."""
    changed = cast(RecordOptions, {**RECORD_OPTIONS, **options})
    return plain((probe or NodeProbe()).record(targets, changed))


def counted(found: Plain, thread_name: str | None = None) -> Counter[tuple[str, ...]]:
    """The samples of a round by the unqualified names of the functions, outermost first; of one thread, or of all."""
    counts: Counter[tuple[str, ...]] = Counter()
    for thread, stack, samples, _ in found["counts"]:
        if thread_name in (None, found["threads"][thread]["thread_name"]):
            names = (found["frames"][index]["function"].rpartition(".")[2] for index in found["stacks"][stack])
            counts[tuple(reversed(list(names)))] += samples
    return counts
