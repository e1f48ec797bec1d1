"""What travels between a caller and a node's probe.

Requests are plain data, checked by mypy on both sides. The answers, of :mod:`dstack.observed.node`, are JSON,
compressed.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable
from typing import Any, TypedDict, final

from dstack.observed.calls import Need
from dstack.observed.node import NodeAnswer, RecordedRound


@final
class UnreadablePython(TypedDict):
    """A Python whose memory dstack cannot interpret, with the reason."""

    unreadable: str


@final
class ForeignPython(TypedDict):
    """The Python of a process that runs another build than the probe: minor version, and where ``_PyRuntime`` is."""

    version: tuple[int, int]
    runtime: int


class _Target(TypedDict):
    worker_id: str
    pid: int
    port: int
    is_driver: bool


class ReadTarget(_Target, total=False):
    """A process to read. ``python`` is given where it runs another Python than the probe."""

    python: ForeignPython | UnreadablePython


class _SampleOptions(TypedDict):
    native: bool
    locals: bool
    pause: bool
    children: bool
    deadline_s: float


class SampleOptions(_SampleOptions, total=False):
    """How to read, until ``deadline_s`` seconds from now.

    It has the fields of :class:`dstack.observed.reading_options.ReadingOptions`, not an instance: its class would
    travel to each node by value, in 0.5 ms.
    ``setups_of`` are the ids of nodes whose runtime environments that are being installed are to be found.
    ``tcp_ends`` are the addresses of TCP sockets, the local one first, whose holders are to be found on this node.
    ``starting`` finds the worker processes that are starting, below the raylets of the request's nodes.
    ``reach`` (default: true) searches for what reaches the objects that threads and coroutines wait on.
    ``reuse`` (default: false), without ``reach``, reads of each process only the threads that ran since the last sample
    with ``reuse``; see :mod:`dstack.probes.node.kept_reading`.
    ``kept`` makes it a round of a profile: these are the ids of the workers whose process the caller has from the last
    answer, so that one in which nothing changed is only named in this one. Of these workers, only those are asked that
    changed, and the ``owners``, whose tasks may have changed without them.
    ``finished_spans`` reads the spans of ``dstack.span`` that have ended.
    ``figures`` reads the figures of the host, with its use of CPUs since they were last read so, where no process is
    read.
    """

    setups_of: list[str]
    tcp_ends: list[str]
    starting: bool
    reach: bool
    reuse: bool
    kept: list[str]
    owners: list[str]
    finished_spans: bool
    figures: bool


class CoreWorker(TypedDict):
    """The address of a core worker on the probe's node, which a node probe asks for its tasks and refs."""

    worker_id: str
    ip: str
    port: int
    pid: int


class Questions(TypedDict):
    """How to ask core workers: at most ``limit`` tasks and refs of each, ``timeout_s`` for each reply.

    ``metadata`` is that of every gRPC call to the cluster. Without ``details``, a task is only its id and its state, as
    a poll needs it. ``with_refs`` adds the refs that the worker knows. Of so many of the largest values that it owns as
    ``places`` says, it is asked where they are.
    """

    metadata: list[tuple[str, str]]
    timeout_s: float
    limit: int
    details: bool
    with_refs: bool
    places: int


@final
class LogTarget(TypedDict):
    """A worker or driver with logs, which may have ended, and the id of its node."""

    process: ReadTarget
    node_id: str


@final
class LogRequest(TypedDict):
    """The workers of which the ends of logs are read, and whether those of the nodes' raylets and agents are, too."""

    workers: list[LogTarget]
    of_nodes: bool


@final
class DumpRequest(TypedDict):
    """Dumps of flight recorders since a time of the head's clock, also with ``prefixes`` that no process may show."""

    since: float
    prefixes: list[str]


class _NodeRequest(TypedDict):
    """One sample of a node: the core workers to ask, and the processes to read meanwhile.

    ``is_first`` says that a snapshot begins with it: figures are measured from here on. ``nodes`` are the ids of the
    nodes that it is about: one, or all of this host.
    """

    is_first: bool
    nodes: list[str]
    workers: list[CoreWorker]
    questions: Questions
    targets: list[ReadTarget]
    options: SampleOptions


class NodeRequest(_NodeRequest, total=False):
    """One sample of a node, perhaps with ``logs``, and with ``outlines`` of drivers: their job by worker id."""

    logs: LogRequest
    outlines: dict[str, str]
    dumps: DumpRequest


class RecordOptions(TypedDict):
    """How to record for ``seconds``, which :class:`dstack.model.recording.RecordingOptions` describes.

    ``is_last`` says that no further round follows, so that what still runs is ended.
    """

    rate_hz: float
    seconds: float
    idle: bool
    gil: bool
    native: bool
    is_last: bool


_SURROGATE = re.compile("[\ud800-\udfff]")


def encoded(answer: NodeAnswer | RecordedRound) -> bytes:
    """The answer as JSON, without fields that have their default.

    A name that is no valid Unicode has its bytes escaped.
    """
    text = json.dumps(answer, ensure_ascii=False, separators=(",", ":"), default=_plain)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub(lambda match: rf"\\u{ord(match[0]):04x}", text).encode()


def packed(answer: NodeAnswer | RecordedRound) -> bytes:
    """The encoded answer, compressed."""
    return zlib.compress(encoded(answer))


def _plain(value: Any) -> dict[str, Any]:
    return _AS_PLAIN[value.__class__](value)


class _Functions(dict[type, Callable[[Any], dict[str, Any]]]):
    """By class: a function from a value to its fields, compiled for the first value.

    A driver may have a million tasks and refs; a loop over their fields takes twice as long.
    """

    def __missing__(self, kind: Any) -> Callable[[Any], dict[str, Any]]:
        always = [name for name in kind.__slots__ if name not in kind._factories and not _is_optional(kind, name)]
        optional = [name for name in kind.__slots__ if name not in always]
        made = {f"default_{name}": factory() for name, factory in kind._factories.items()}
        made |= {f"default_{name}": value for name, value in kind._defaults.items()}
        stated = ", ".join(f"{name!r}: value.{name}" for name in always)
        lines = [_line(name, made[f"default_{name}"]) for name in optional]
        exec("\n".join(["def as_plain(value):", f"    plain = {{{stated}}}", *lines, "    return plain"]), made)
        self[kind] = made["as_plain"]
        return self[kind]


def _is_optional(kind: Any, name: str) -> bool:
    """Whether the field has a default that may be left out; the kind of a need is always stated."""
    return name in kind._defaults and not (issubclass(kind, Need) and name == "kind")


def _line(name: str, default: object) -> str:
    """The statement that states a field unless it has its default."""
    condition = "is not None" if default is None else f"!= default_{name}"
    return f"    if value.{name} {condition}: plain[{name!r}] = value.{name}"


_AS_PLAIN = _Functions()
