"""The ends of the files that processes write their output to, and the lines in them that say something.

The files are those behind descriptors 1 and 2 of a process, so they are found for workers, drivers and child processes
alike, also in containers and after a file was deleted. Only regular files are opened: to read a pipe or a terminal
would take its content away. Of a worker that has ended, the files are found by their names in the folder of its
raylet's logs: ``worker-WORKER-JOB-PID.out`` and ``.err`` (seen on Ray 2.46 and 2.60).

Lines are classified by a table of texts. What belongs to one traceback is one line here, with its header, which says
who prints it: a thread (``threading.excepthook``), an asyncio task that nobody awaited, or the end of the process.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from dstack.observed.node import WITHOUT_DIGITS, LogKind, LogLine, LogStream, LogTail
from dstack.probes.node.procfs import proc
from dstack.probes.node.redaction import masked_log_line

TAIL_BYTES = 1 << 16
LAST_LINES, KNOWN_LINES = 5, 12
"""The lines that are kept of a file: the last ones, and different ones of a known kind."""
LONGEST_LINE = 400
MAX_FILES, MAX_CHILDREN = 512, 16
"""The most files that are read for one sample of a node, and child processes of a worker."""
MAX_PATH, MAX_NAMES = 1_024, 5_000
ENDED_WORKERS, RECENT_S = 3, 3600.0
"""The worker processes that have ended whose output is read with the logs of a node."""
ERRORS = re.compile(r"worker-[0-9a-f]{56}-[0-9a-f]{8}-(\d{1,10})\.err")
OUTPUTS: Sequence[tuple[int, LogStream]] = ((2, "stderr"), (1, "stdout"))
STREAMS: Mapping[str, LogStream] = {".err": "stderr", ".out": "stdout"}
OF_NODE: Sequence[tuple[str, LogStream]] = (
    ("raylet.err", "raylet"),
    ("raylet.out", "raylet"),
    ("runtime_env_agent.log", "agent"),
    ("gcs_server.out", "GCS"),
)
OF_RAYS_CODE: Sequence[LogStream] = ("core worker", "raylet", "GCS")
"""Logs of Ray's C++ code: only warnings and errors are kept, and only known texts say something."""

KNOWN: Sequence[tuple[LogKind, Sequence[str]]] = (
    (
        "out of memory",
        ("out of memory", "outofmemory", "cannot allocate memory", "bad_alloc", "oom-kill", "memoryerror"),
    ),
    ("CUDA", ("cuda error", "cudnn_status_", "cublas_status_", "device-side assert", "nvrm: xid", "uncorrectable ecc")),
    ("NCCL", ("nccl warn", "nccl error", "ncclsystemerror", "ncclinternalerror", "ncclremoteerror", "watchdog caught")),
    ("UCX", ("ucx  error", "ucx  warn", "ucx error", "ucx  fatal")),
    ("disk full", ("no space left on device", "disk quota exceeded", "outofdiskerror", "over capacity")),
    ("no descriptors", ("too many open files",)),
    (
        "name resolution",
        (
            "name or service not known",
            "temporary failure in name resolution",
            "no address associated with hostname",
            "nameresolutionerror",
            "could not resolve host",
        ),
    ),
    ("refused connection", ("connection refused", "connectionrefusederror", "econnrefused", "no route to host")),
    ("lost connection", ("connection reset by peer", "broken pipe", "connectionreseterror", "brokenpipeerror")),
    (
        "no answer",
        (
            "connection timed out",
            "connecttimeout",
            "readtimeout",
            "read timed out",
            "deadline exceeded",
            "operation timed out",
            "network is unreachable",
        ),
    ),
    ("rate limit", ("too many requests", "ratelimit", "rate limit", "quota exceeded", "throttlingexception")),
    (
        "no access",
        ("permission denied", "401 unauthorized", "403 forbidden", "certificate verify failed", "access denied"),
    ),
    (
        "worker start",
        (
            "have not registered within the timeout",
            "failed to create runtime env",
            "runtime env setup",
            "startup token",
        ),
    ),
    ("object store", ("object store is full", "objectstorefull", "failed to restore object", "failed to spill")),
)
"""Texts in lower case, by the kind of the lines that have them; the first row that fits counts."""
TEXTS: Sequence[tuple[str, LogKind]] = tuple((text, kind) for kind, texts in KNOWN for text in texts)
ENDINGS: Mapping[str, LogKind] = {
    "thread": "thread exception",
    "task": "asyncio exception",
    "exit": "exit exception",
    "fatal": "fatal error",
}
ENDING = re.compile(
    r"(?P<thread>Exception in thread )"
    r"|(?P<task>(?:Task|Future) exception was never retrieved|Exception in callback )"
    r"|(?P<exit>Error in atexit\._run_exitfuncs|Exception ignored in|Error in sys\.excepthook)"
    r"|(?P<fatal>Fatal Python error|\*\*\* (?:SIG(?!TERM|INT)[A-Z]+|Aborted) |Segmentation fault)"
)
"""What is printed about an end that no caller sees, before its traceback if there is one; CPython 3.10 to 3.14."""
TRACEBACK = "Traceback (most recent call last)"
HEADERS = 3
"""A traceback begins at most so many lines after such a text."""
CHAINED = ("During handling of the above", "The above exception was")
MAX_TRACEBACK = 400
AT = re.compile(r'File "([^"]+)", line (\d+)')
INSTALLED = ("site-packages", "dist-packages", "/lib/python3", "<frozen", "<string>")
MARKS = ("xception", "Error in ", "Fatal Python", "*** ", "Segmentation fault", TRACEBACK)
"""A log without any of these has no such text."""
LEVELS = ("ERROR", "CRITICAL", "FATAL", "WARN")
LEVEL = re.compile(r"(?<![\w-])(?:(ERROR|CRITICAL|FATAL)|WARN(?:ING)?)(?![\w-])")
OF_RAY = re.compile(r"^\[[\d :,.-]+ [WEF] \d+ \d+\].*", re.MULTILINE)
"""A warning or error of Ray's C++ code."""
TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
TIME_WITHIN, LEVEL_WITHIN = 60, 120
"""The time and the level of a line are among so many first characters."""
COLOURS = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
FORWARDED = re.compile(r"\([^()]{1,200} pid=\d+(?:, ip=[^()]{1,60})?\) ?")
"""What a driver prints before a line of a worker; seen on Ray 2.46 and 2.60."""
MAGIC = (":job_id:", ":actor_name:", ":task_name:", "::task_name:", "::actor_name:")
"""What Ray's workers write into their files for Ray's log monitor; seen on Ray 2.46 and 2.60."""


@dataclass
class _Found:
    """A line or traceback, which is ``first`` where it repeats; ``end`` counts the lines of the file up to its end."""

    text: str
    kind: LogKind
    end: int
    place: tuple[str, int] | None = None
    writer: str = ""
    count: int = 1
    first: str = ""


class LogFiles:
    """Reads files for one sample of a node, each only once: processes often share one.

    ``folders`` are those of the logs of the nodes, by the ids of the nodes.
    """

    def __init__(self, folders: Mapping[str, str], deadline: float) -> None:
        self.tails: list[LogTail] = []
        self._folders = folders
        self._deadline = deadline
        self._seen: set[tuple[int, int]] = set()

    def read_worker(self, worker_id: str, pid: int, children: Iterable[int]) -> None:
        """Read what a worker or driver and its child processes write to, and the log of its core worker."""
        for one in (pid, *islice(children, MAX_CHILDREN)):
            for descriptor, stream in OUTPUTS:
                self._read(f"/proc/{one}/fd/{descriptor}", stream, worker_id=worker_id, pid=one)
        for folder in self._folders.values():
            for role in ("worker", "driver"):
                name = f"python-core-{role}-{worker_id}_{pid}.log"
                self._read(os.path.join(folder, name), "core worker", worker_id=worker_id, pid=pid)

    def read_gone(self, node_id: str, worker_id: str, pid: int) -> None:
        """Read the files of a worker that has ended, by their names."""
        if folder := self._folders.get(node_id):
            for name in proc.names_in(folder):
                stream = STREAMS.get(name[-4:]) if name.startswith(f"worker-{worker_id}-") else None
                if stream:
                    self._read(os.path.join(folder, name), stream, worker_id=worker_id, pid=pid)

    def read_node(self, node_id: str) -> None:
        """Read the logs of a node's raylet, its agent, and the last installation of a runtime environment.

        Also what the last worker processes printed that have ended: they may have died before they connected.
        """
        if not (folder := self._folders.get(node_id)):
            return
        for name, stream in OF_NODE:
            self._read(os.path.join(folder, name), stream, node_id=node_id)
        names = proc.names_in(folder)
        for path in _newest(folder, (name for name in names if name.startswith("runtime_env_setup-")), 1):
            self._read(path, "environment", node_id=node_id)
        ended = (name for name in names if (match := ERRORS.fullmatch(name)) and not proc.name(int(match[1])))
        for path in _newest(folder, ended, ENDED_WORKERS):
            self._read(path, "stderr", node_id=node_id, pid=int(path.rpartition("-")[2].removesuffix(".err")))

    def _read(
        self,
        path: str,
        stream: LogStream,
        *,
        worker_id: str | None = None,
        node_id: str | None = None,
        pid: int | None = None,
    ) -> None:
        """Add the tail of a regular file that is not empty, unless it is there already."""
        if len(self._seen) >= MAX_FILES or time.monotonic() > self._deadline:
            return
        try:
            name = os.readlink(path) if path.startswith("/proc/") else path
            about = os.stat(path) if name.startswith("/") else None
            if about is None or not stat.S_ISREG(about.st_mode) or not about.st_size:
                return
            if (about.st_dev, about.st_ino) in self._seen:
                return
            self._seen.add((about.st_dev, about.st_ino))
            start = max(0, about.st_size - TAIL_BYTES)
            with open(path, "rb") as file:
                file.seek(start)
                text = file.read(TAIL_BYTES).decode("utf-8", "replace")
        except OSError:
            return
        lines = lines_of(text.partition("\n")[2] if start else text, stream)
        if not lines:
            return
        tail = LogTail(
            path=name[:MAX_PATH],
            stream=stream,
            written_at=about.st_mtime,
            lines=tuple(lines),
            worker_id=worker_id,
            node_id=node_id,
            pid=pid,
            is_cut=start > 0,
        )
        self.tails.append(tail)


def lines_of(text: str, stream: LogStream) -> list[LogLine]:
    """The lines of a log that are kept, in their order: the last ones, and those of a known kind.

    A driver's log has lines of workers, too, between each other: those of each worker are looked at by themselves.
    """
    if stream in OF_RAYS_CODE:
        text = "\n".join(OF_RAY.findall(text))
    lines = [line.rstrip().rpartition("\r")[2] for line in COLOURS.sub("", text).split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    by_writer: dict[str, list[tuple[int, str]]] = {}
    for number, line in enumerate(lines, 1):
        match = FORWARDED.match(line) if line.startswith("(") else None
        writer = match[0] if match else ""
        by_writer.setdefault(writer, []).append((number, line[len(writer) :]))
    known = _Known(text, stream)
    found = [one for writer, its in by_writer.items() for one in _found(writer, its, known)]
    distinct = _distinct(sorted(found, key=lambda one: one.end))
    last = distinct[-LAST_LINES:]
    before = [one for one in distinct[:-LAST_LINES] if one.kind != "plain"][-KNOWN_LINES:]
    return [_line(one, len(lines)) for one in (*before, *last)]


class _Known:
    """The texts of :data:`TEXTS` that a log has, and whether lines may have levels."""

    def __init__(self, text: str, stream: LogStream) -> None:
        lower = text.lower()
        self.stream = stream
        self.has_tracebacks = any(mark in text for mark in MARKS)
        self._texts = [(known, kind) for known, kind in TEXTS if known in lower]
        self._has_levels = stream not in OF_RAYS_CODE and any(level in text for level in LEVELS)

    def kind_of(self, line: str) -> LogKind:
        """The first kind that fits a line, or its level."""
        lower = line.lower() if self._texts else ""
        if (kind := next((kind for text, kind in self._texts if text in lower), None)) is not None:
            return kind
        level = LEVEL.search(line, 0, LEVEL_WITHIN) if self._has_levels else None
        return "plain" if level is None else "error" if level[1] else "warning"


def _found(writer: str, numbered: Sequence[tuple[int, str]], known: _Known) -> list[_Found]:
    """The lines and tracebacks of one writer."""
    lines = [line for _, line in numbered]
    found, taken = _tracebacks(lines, known) if known.has_tracebacks else ([], set())
    for at, line in enumerate(lines):
        if at not in taken and line and not line.isspace() and not line.startswith(MAGIC):
            found.append(_Found(line.strip(), known.kind_of(line), at + 1))
    for one in found:
        one.writer, one.end = writer.strip(), numbered[one.end - 1][0]
    return found


def _line(found: _Found, total: int) -> LogLine:
    at, first_at = _time_of(found.text), _time_of(found.first)
    return LogLine(
        text=masked_log_line(found.text[:LONGEST_LINE]),
        kind=found.kind,
        writer=found.writer,
        at=at,
        count=found.count,
        first_at=None if at is None or first_at is None else min(at, first_at),
        file=found.place[0][:MAX_PATH] if found.place else None,
        line=found.place[1] if found.place else None,
        lines_after=max(0, total - found.end),
    )


def _distinct(found: Iterable[_Found]) -> list[_Found]:
    """Each text once, where it was last, with its number; texts that differ in numbers only are the same."""
    by_text: dict[tuple[LogKind, str, str], _Found] = {}
    for one in found:
        key = one.kind, one.writer, one.text.translate(WITHOUT_DIGITS)
        if before := by_text.pop(key, None):
            one.count += before.count
            one.first = before.first or before.text
        by_text[key] = one
    return list(by_text.values())


def _tracebacks(lines: Sequence[str], known: _Known) -> tuple[list[_Found], set[int]]:
    """The tracebacks, and other unhandled ends, each as one line; and the numbers of all their lines."""
    found: list[_Found] = []
    taken: set[int] = set()
    number = 0
    while number < len(lines):
        match = ENDING.search(lines[number])
        ending = ENDINGS[match.lastgroup or ""] if match else None
        ahead = range(number, min(number + HEADERS, len(lines)))
        begins = next((at for at in ahead if TRACEBACK in lines[at]), None)
        if ending is None and begins != number:
            number += 1
            continue
        header = lines[number].strip() if ending else ""
        raised, end, place = _raised(lines, begins) if begins is not None else ("", number + 1, None)
        text = ": ".join(part for part in (header.rstrip(": "), raised) if part)
        kind = ending or known.kind_of(raised)
        found.append(_Found(text, "exception" if kind == "plain" else kind, end, place))
        taken.update(range(number, end))
        number = end
    return found, taken


def _raised(lines: Sequence[str], begins: int) -> tuple[str, int, tuple[str, int] | None]:
    """The last exception of a traceback, where it ends, and the innermost place outside of installed packages."""
    place, end, raised = None, begins + 1, ""
    for at in range(begins + 1, min(begins + MAX_TRACEBACK, len(lines))):
        line = lines[at]
        if (frame := AT.search(line)) and line.startswith(" "):
            if not any(part in frame[1] for part in INSTALLED):
                place = frame[1], int(frame[2])
        elif line.startswith(CHAINED):
            raised = ""
        elif line and raised:
            break
        elif line and not line.startswith(" ") and TRACEBACK not in line:
            raised, end = line.strip(), at + 1
    return raised, end, place


def _time_of(line: str) -> float | None:
    """The time that a line states, by the clock and the time zone of this host."""
    match = TIME.search(line, 0, TIME_WITHIN)
    if match is None:
        return None
    try:
        year, month, day, hour, minute, second = map(int, match.groups()[:6])
        whole = time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
    except (ValueError, OverflowError):
        return None
    return whole + float(f"0.{match[7] or 0}") if whole > 0 else None


def _newest(folder: str, names: Iterable[str], most: int) -> list[str]:
    """The paths of these files that were last changed, a short time ago, and are not empty."""
    found: list[tuple[float, str]] = []
    for name in islice(names, MAX_NAMES):
        try:
            about = os.stat(path := os.path.join(folder, name))
        except OSError:
            continue
        if about.st_size and about.st_mtime > time.time() - RECENT_S:
            found.append((about.st_mtime, path))
    return [path for _, path in sorted(found, reverse=True)[:most]]
