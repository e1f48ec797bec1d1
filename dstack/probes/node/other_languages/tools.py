"""The tools that print the stacks of processes in other languages than Python: jstack for Java, and gdb for C++.

A process of Ray's in such a language has mapped Ray's library for it, as seen on Ray 2.46 and 2.60.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dstack.probes.node.commands import run
from dstack.probes.node.other_languages.gdb_text import parse_gdb
from dstack.probes.node.other_languages.jstack_text import parse_jstack
from dstack.probes.node.other_languages.stacks import NativeThread
from dstack.probes.node.procfs import proc
from dstack.probes.node.procfs.permissions import DumpFailed, last_words, why_denied, why_refused
from dstack.probes.node.procfs.proc import Mapping

SIGQUIT = 1 << 2
"""The bit of SIGQUIT in ``SigCgt`` of ``/proc/PID/status``."""
GDB_OPTIONS = (
    *("-nx", "-batch", "-iex", "set auto-load off", "-iex", "set debuginfod enabled off"),
    *("-ex", "set width 0", "-ex", "set print frame-arguments scalars", "-ex", "set print entry-values no"),
    *("-ex", "thread apply all backtrace 1000", "-p"),
)
"""No file of the target or its user is executed, and nothing is downloaded. Commands run after gdb has attached."""


@dataclass(frozen=True)
class Language:
    """A language other than Python: Ray's ``library`` for it, and the ``tool`` that prints its stacks."""

    name: str
    library: str
    tool: str
    options: Sequence[str]
    parse: Callable[[str], list[NativeThread]]
    remedy: str


JAVA = Language(
    "Java",
    library="libcore_worker_library_java.so",
    tool="jstack",
    options=(),
    parse=parse_jstack,
    remedy="Install the JDK of its version of Java there, of which jstack is a part.",
)
CPP = Language(
    "C++",
    library="libray_api.so",
    tool="gdb",
    options=GDB_OPTIONS,
    parse=parse_gdb,
    remedy="Install gdb there.",
)


def language_of(files: Iterable[Mapping]) -> Language | None:
    """The language of a process that has mapped these files; None for Python, or if it is unknown."""
    names = {os.path.basename(file.path.removesuffix(" (deleted)")) for file in files}
    return next((one for one in (JAVA, CPP) if one.library in names), None)


def threads_of(language: Language, pid: int, timeout_s: float) -> list[NativeThread]:
    """The threads of a process, which the tool pauses. Raises :class:`DumpFailed`."""
    tool = language.tool
    path = shutil.which(tool)
    if path is None:
        raise DumpFailed(
            f"it runs {language.name}, and {tool} was not found on its node", language.remedy, cause="missing"
        )
    if language is JAVA:
        _require_attachable(pid)
    try:
        arguments = [path, *language.options, str(pid)]
        done = run(arguments, timeout_s, is_polite=False, is_apart=True, stops=pid, variables={"LC_ALL": "C"})
    except subprocess.TimeoutExpired as error:
        raise DumpFailed(f"{tool} timed out after {timeout_s:.1f} s", cause="timeout") from error
    except OSError as error:
        raise DumpFailed(f"{tool} could not be started: {error.strerror}", language.remedy) from error
    threads = language.parse(done.stdout.decode(errors="replace"))
    if not threads:
        raise _why_failed(language, pid, done.stderr.decode(errors="replace"))
    return threads


def _require_attachable(pid: int) -> None:
    """Raise if SIGQUIT, which jstack sends, would end the process: with ``-Xrs`` a JVM does not handle it."""
    caught = int(proc.status(pid).get("SigCgt", "0"), 16)
    if not caught & SIGQUIT:
        raise DumpFailed(
            "it runs Java and handles no SIGQUIT, which jstack would send, as with -Xrs", cause="unreadable"
        )


def _why_failed(language: Language, pid: int, stderr: str) -> DumpFailed:
    """The reason from ``/proc`` or the tool's own words; jstack does not say that it was not permitted."""
    if proc.owner(pid) not in (None, os.geteuid()) and os.geteuid() != 0:
        return why_denied(pid)
    said = "\n".join(line for line in stderr.splitlines() if not line.lower().startswith(("warning", "picked up ")))
    if not said.strip():
        return DumpFailed(f"the output of {language.tool} has no threads", cause="malformed")
    return why_refused(pid, said) or DumpFailed(f"{language.tool} failed: {last_words(said)}")
