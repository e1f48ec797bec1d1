"""Runtime environments that are being installed on this node: the processes of Ray's runtime environment agent.

A raylet starts one agent, which runs pip, conda or uv as its own child processes (seen on Ray 2.46 and 2.60). A host
may have raylets of several clusters; they are distinguished by the id of their node.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator

from dstack.observed.node import EnvironmentSetup
from dstack.probes.node.procfs import proc
from dstack.probes.node.redaction import masked_command

RAYLET = "raylet"
AGENT_TITLE, AGENT_SCRIPT = "ray::RuntimeEnvAgent", "ray/_private/runtime_env/agent/main.py"
NODE_ID = re.compile(r"--node[_-]id=([0-9a-f]{56})$")
SETUP_LOG = re.compile(r"runtime_env_setup-\w+\.log$")
INSTALLERS = ("pip", "pip3", "conda", "mamba", "uv", "virtualenv")
LOG_PREFIX = re.compile(r"^[\d-]+ [\d:,.]+\s+[A-Z]+ \S+:\d+ -- ")
"""What Ray writes before a line of a command's output."""
SHELLS = ("sh", "bash", "dash")
RAYLET_WORDS = 40
AGENT_WORDS = 30
COMMAND_WORDS = 40
MAX_SETUPS = 16
TAIL_BYTES = 1 << 12
MAX_LOGS = 1_000


def environment_setups(node_ids: Collection[str]) -> list[EnvironmentSetup]:
    """The installations that run now for these nodes, oldest first, at most :data:`MAX_SETUPS`."""
    children = proc.children()
    found: list[EnvironmentSetup] = []
    for node_id, raylet in raylets(node_ids, children):
        for agent in filter(_is_agent, children[raylet]):
            found += _setups_of(node_id, agent, children)
    return sorted(found, key=lambda setup: setup.started_at)[:MAX_SETUPS]


def raylets(node_ids: Collection[str], parents: Iterable[int]) -> Iterator[tuple[str, int]]:
    """The raylets of these nodes, by the id of the node, among the processes that have children."""
    for pid in list(parents):
        if proc.name(pid) == RAYLET:
            node_id = _first(NODE_ID, proc.arguments(pid, RAYLET_WORDS))
            if node_id in node_ids:
                yield node_id, pid


def _setups_of(node_id: str, agent: int, children: dict[int, list[int]]) -> Iterator[EnvironmentSetup]:
    for child in children[agent][:MAX_SETUPS]:
        pid = _within_shells(child, children)
        figures, words = proc.figures(pid), proc.command(pid, COMMAND_WORDS)
        if figures is None or not words:
            continue
        yield EnvironmentSetup(
            node_id=node_id,
            pid=pid,
            command=masked_command(" ".join(_without_interpreter(words))),
            started_at=figures.started_at,
            output=masked_command(LOG_PREFIX.sub("", _last_line(_output_of(pid, agent)))),
        )


def _without_interpreter(words: list[str]) -> list[str]:
    """``pip install torch`` of ``/usr/bin/python3 -m pip install torch`` or ``python3 /usr/bin/pip install torch``."""
    program, *arguments = words
    if os.path.basename(program).startswith("python") and arguments:
        if arguments[0] == "-m" and len(arguments) > 1:
            return arguments[1:]
        if os.path.basename(arguments[0]) in INSTALLERS:
            program, *arguments = arguments
    return [os.path.basename(program), *arguments]


def _is_agent(pid: int) -> bool:
    words = proc.command(pid, AGENT_WORDS)
    return bool(words) and (words[0].startswith(AGENT_TITLE) or any(word.endswith(AGENT_SCRIPT) for word in words))


def _within_shells(pid: int, children: dict[int, list[int]]) -> int:
    """The only program that a shell runs, in place of the shell."""
    for _ in SHELLS:
        below = children[pid]
        if os.path.basename(proc.program(pid)) not in SHELLS or len(below) != 1:
            break
        pid = below[0]
    return pid


def _output_of(pid: int, agent: int) -> str:
    """The file that a setup writes to; where that is a pipe, the newest of the logs that the agent has open."""
    file = proc.file_at(pid, 1)
    if os.path.isfile(file):
        return file
    files = (proc.file_at(agent, descriptor) for descriptor in proc.descriptors(agent)[:MAX_LOGS])
    logs = [file for file in files if SETUP_LOG.search(file)]
    return max(logs, key=_changed_at, default="")


def _changed_at(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _last_line(path: str) -> str:
    """The last line of a regular file that is not empty, from its last 4 KiB."""
    try:
        if not os.path.isfile(path):
            return ""
        with open(path, "rb") as file:
            file.seek(max(0, os.stat(path).st_size - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _first(pattern: re.Pattern[str], words: list[str]) -> str:
    return next((match[1] for match in map(pattern.search, words) if match), "")
