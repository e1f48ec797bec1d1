"""The next step where no change is known to resolve a chain: one concrete thing to inspect at its end.

Each is a line of code with a command that shows more, or a file. All commands work as they are printed.
"""

from __future__ import annotations

import re

from dstack.analysis.findings import failures
from dstack.analysis.findings.finding_facts import FindingFacts
from dstack.analysis.findings.kinds.open_chain import is_start, waiter_of
from dstack.analysis.findings.narration import Narrator
from dstack.analysis.naming import names
from dstack.analysis.naming.descriptions import describe, operand_in_words
from dstack.analysis.naming.vertex_details import VertexDetails
from dstack.call_sites import ROOM_FOR_VALUES, site_of
from dstack.model.diagnosis import Advice, Vertex
from dstack.model.snapshot import Actor, Node
from dstack.model.vertex_facts import Fact, Reason
from dstack.model.vertex_keys import Unknown, UnknownKey
from dstack.observed.node import EnvironmentSetup

LOGS = "/tmp/ray/session_latest/logs"
"""Where Ray writes the logs of a node, unless it was started with another --temp-dir (Ray 2.60)."""
RAYS_DEBUGGER = "/ray/util/rpdb.py"
"""The file of Ray's own debugger, to which ``ray debug`` connects (Ray 2.60)."""
DISTRIBUTED_DEBUGGER = "/ray/util/debugpy.py"
"""The file of the breakpoints to which the Ray Distributed Debugger connects (Ray 2.60)."""
MEMORY = "`dstack memory` shows"
NAME = re.compile(r"[\w.]+")
"""A name of a call that a shell takes as it is."""
OBJECT = re.compile(r"[a-z]+ [a-z0-9][a-z0-9.-]*")
"""The kind and the name of an object of Kubernetes."""

FIXES: dict[Unknown, str] = {
    "new node": "Start a node that has it, or ask for less",
    "removed group": (
        "Cancel the tasks of a placement group (ray.cancel) before it is removed: Ray keeps them pending until their "
        "owner ends"
    ),
}
"""The changes that resolve the wait for some unknown dependencies."""


ALLOW_NODE = (
    "Give the autoscaler a type of node that has it, raise its limits of nodes (max_workers, maxReplicas), or ask for "
    "less."
)


def advice_at_end(facts: FindingFacts, narrator: Narrator) -> Advice:
    """What to do about the first final blocker, or about waits that have none.

    What runs while it holds resources says more than the end of the holder.
    """
    first = facts.ends[0] if facts.ends else None
    if first and first.holder:
        first = next((end for end in facts.ends if end.kind == "execution"), first)
    match expectation(first) if first else None:
        case Reason(why="refused"):
            return Advice(kind="fix", text=ALLOW_NODE)
        case Reason(why="platform event", of=(kind, name, *_)):
            which = f"{str(kind).lower()} {name}"
            command = f"kubectl describe {which if OBJECT.fullmatch(which) else 'pod POD'}"
            return Advice(kind="next", text=f"`{command}` shows why it does not start.")
    if first and isinstance(first.key, UnknownKey) and first.key.what in FIXES:
        return Advice(kind="fix", text=f"{FIXES[first.key.what]}.")
    return Advice(kind="next", text=f"{_inspect(facts, narrator, first)}.")


def expectation(end: Vertex) -> Reason | None:
    """Why a new node may still join; None of other vertices."""
    expected = end.subject.of[-1] if end.subject.what == "new node" else None
    return expected if isinstance(expected, Reason) else None


def _inspect(facts: FindingFacts, narrator: Narrator, first: Vertex | None) -> str:
    opened = (_breakpoint(narrator, vertex) for vertex in (*facts.ends, *facts.members))
    if text := next(filter(None, opened), None):
        return text
    halted = (details for one in (*facts.ends, *facts.members) if (details := narrator.details(one)).halt)
    if found := next(halted, None):
        return _of_halted(found)
    if first is None:
        return f"{_command(narrator, facts.members[0])} and the same of the others show which should send first"
    if first.waker_of or facts.reduced.is_machinery(first.key):
        return _of_unknown_waker(facts, narrator, first)
    if isinstance(first.key, UnknownKey) and (text := _of_unknown(facts, narrator, first)):
        return text
    if first.unobserved:
        return f"Run dstack again to read the {describe(first)}"
    if first.kind == "lifetime" and first.holder is None:
        return _of_users(narrator, first)
    if is_start(first):
        return _of_start(narrator, first)
    if first.kind == "task":
        return f"{_tasks(narrator, first)} shows the state of {narrator.name(first)}"
    return _of_execution(narrator, first) if first.kind == "execution" else _of_other(narrator, first)


def _of_other(narrator: Narrator, first: Vertex) -> str:
    """What shows more about what Ray, or one of its libraries, is about to do."""
    if first.subject.what in ("new replica", "first replica", "start of replica"):
        return f"`serve status` shows the state of {narrator.name(first)}"
    if first.holder:
        return f"`ray status` shows what is held. Only {narrator.name(first)} frees it"
    return f"Run dstack again: {narrator.name(first)} may only take a moment"


def _breakpoint(narrator: Narrator, vertex: Vertex) -> str:
    """The open breakpoint of an execution, with how to connect to it; empty if there is none."""
    details = narrator.details(vertex)
    files = {frame.file for frame in details.frames}
    if any(file.endswith(RAYS_DEBUGGER) for file in files):
        return f"Run `ray debug`: a breakpoint is open in {describe(vertex)}{narrator.line(vertex)}"
    if any(file.endswith(DISTRIBUTED_DEBUGGER) for file in files):
        where = f"{describe(vertex)}{narrator.line(vertex)}"
        return f"Attach the Ray Distributed Debugger: a breakpoint is open in {where}"
    return ""


def _of_halted(details: VertexDetails) -> str:
    """What lets a process go on that the kernel does not run, or shows why."""
    assert details.halt is not None
    match details.halt.kind:
        case "stopped":
            return f"`kill -CONT {details.pid}` on its node lets the process go on, which a signal has stopped"
        case "traced":
            tracer = f"{details.halt.by or 'the process'} (pid {details.halt.tracer})"
            return f"Detach or end {tracer} on its node: it has stopped the process with pid {details.pid}"
        case "dumps core":
            return f"The core dump of the process with pid {details.pid} shows why it crashed, once it is written"
        case "uninterruptible":
            stack = f"/proc/{details.pid}/task/{details.halt.os_thread_id}/stack"
            return f"`cat {stack}` as root on its node shows the driver or file system that has to answer"


def _of_unknown_waker(facts: FindingFacts, narrator: Narrator, first: Vertex) -> str:
    """The line of the waiter, and what it waits for there; or the asyncio task that should have ended the wait."""
    if ended := failures.of_ended_task(facts.failed_before):
        return f"See why {ended}"
    if first.waker_of and first.waker_of.site in ROOM_FOR_VALUES:
        return f"{MEMORY} what fills the object store. Values in use cannot be spilled, others wait for the disk"
    waiter = waiter_of(facts, first)
    if waiter is None:
        return f"Search the code for what ends {first.waker_of or narrator.name(first)}"
    where = f"{describe(waiter.vertex)}{narrator.line(waiter.vertex)}"
    wait = waiter.vertex.wait
    ended_by = (wait.site.ended_by if wait else None) or (first.waker_of and site_of(first.waker_of.site).ended_by)
    if ended_by is None:
        shows = f"{_command(narrator, waiter.vertex)} shows what led there"
        return f"{where} waits in {waiter.call}, which its other side has to end: {shows}"
    return f"{where} waits for {ended_by}: search the code for where it should come from"


def _of_unknown(facts: FindingFacts, narrator: Narrator, first: Vertex) -> str:
    """What shows more about a dependency of which Ray tells only its kind; empty for other kinds."""
    assert isinstance(first.key, UnknownKey)
    if first.key.what in ("argument memory", "transfer of arguments"):
        return f"{MEMORY} what fills the object stores, and where the arguments are"
    if first.subject.what == "worker start":
        return f"{_logs_of_node(narrator, first)} shows why no worker process connects"
    if first.key.is_scheduler:
        return (
            f"`grep num_ {LOGS}/debug_state.txt` on each node counts what requests wait for: workers, memory or other "
            "nodes"
        )
    if first.key.is_setup:
        return f"{_logs_of_node(narrator, first)} shows how far the installation is"
    match first.key.what:
        case "autoscaler":
            return (
                f"`ray status` shows what the autoscaler adds, and `tail {LOGS}/monitor.log` on the head what fails. "
                "On Kubernetes, `kubectl get pods` and `kubectl describe pod POD` show what is pending, and why"
            )
        case "slot":
            doing = f" at{line.removeprefix(' at')}" if (line := narrator.line(first)) else ""
            command = _command(narrator, first, "--native")
            return f"{command} shows what the actor does{doing}: it does not start the call, though it has a free slot"
        case "executor":
            return "Run dstack again: the worker that received the call did not report it as running"
        case "retry":
            return f"{_tasks(narrator, first)} shows the errors of the call that Ray is about to repeat"
        case "timer":
            waiter = next((one for one in facts.members if narrator.reduced.is_in_users_code(one.key)), first)
            return f"{_command(narrator, waiter)} shows what waits for the timer"
    return ""


def _of_users(narrator: Narrator, first: Vertex) -> str:
    """Where to see the code that can end a wait, as it can use an actor."""
    name = narrator.name(first)
    actor = next((one for one in first.subject.of if isinstance(one, Actor)), None)
    if actor is None or not actor.pid:
        return f"`dstack graph` shows the calls of the {name}, which alone can end the wait"
    command = f"`dstack stacks {actor.pid}`"
    return f"{command} shows the code of {operand_in_words(actor)}: only code that can use it ends the wait"


def _of_start(narrator: Narrator, first: Vertex) -> str:
    pid = narrator.details(first).pid or "worker"
    return f"The worker process is still starting{narrator.line(first)}: {log_of_worker(pid)}"


def _of_execution(narrator: Narrator, first: Vertex) -> str:
    """What the execution does at its line, and the command that shows more: it computes only if it used a CPU."""
    where = f"at {line.removeprefix(' at ')}" if (line := narrator.line(first)) else "there"
    name, details, reduced = describe(first), narrator.details(first), narrator.reduced
    computes = reduced.computes(first)
    shows = f"{_command(narrator, first)} shows what led there"
    if details.imports:
        return f"{name} {details.imports} {where}: {shows}"
    if details.sleeps:
        return f"{name} sleeps {where}: {shows}"
    if details.coroutine:
        return f"{name} sleeps {where}, or is ready to run: {shows}"
    if computes:
        return f"{name} is computing {where}: `dstack record -o run.html` shows which code takes the time"
    if details.on_cpu and computes is not None and reduced.sleeps_between(first):
        return f"{name} wakes and sleeps {where}: {shows}"
    if details.on_cpu:
        does = "runs" if computes is None else "uses little CPU time"
        return f"{name} {does} {where}: `dstack record -o run.html --idle` shows where it spends its time"
    command = _command(narrator, first, "--native")
    return f"{name} sleeps, or waits outside Python (network, file, C code), {where}: {command} shows in which call"


def _command(narrator: Narrator, vertex: Vertex, option: str = "") -> str:
    """```dstack stacks Reward.score```: by the name of a call, else by the process."""
    name = describe(vertex)
    worker = narrator.index.worker_of(vertex)
    is_call = vertex.task_id is not None and vertex.child_pid is None and NAME.fullmatch(name)
    which = name if is_call else str(worker.pid) if worker is not None else ""
    return f"`{' '.join(filter(None, ('dstack stacks', option, which)))}`"


def _tasks(narrator: Narrator, vertex: Vertex) -> str:
    """```ray list tasks --filter name=Reward.score --detail```: what Ray knows of a call."""
    ids = vertex.key.ids if isinstance(vertex.key, UnknownKey) else ()
    task = narrator.index.tasks.get(vertex.task_id or str(next(iter(ids), "")))
    return tasks_named(task.name if task else "")


def tasks_named(name: str) -> str:
    """The command that lists the calls of this name, with their errors; of all calls, if a shell would not take it."""
    return f"`ray list tasks{f' --filter name={name}' if NAME.fullmatch(name) else ''} --detail`"


def log_of_worker(pid: int | str) -> str:
    """The command that prints the end of what a worker process writes, before it is registered too."""
    return f"`dstack logs {pid}` prints the end of its output"


def _logs_of_node(narrator: Narrator, first: Vertex) -> str:
    """The command that prints the logs of the node that a vertex is about, or of all nodes."""
    facts = (*first.subject.of, *(part for one in first.subject.of if isinstance(one, Fact) for part in one.of))
    node = next((one for one in facts if isinstance(one, Node)), None)
    setup = next((one for one in facts if isinstance(one, EnvironmentSetup)), None)
    node = node or (narrator.index.nodes.get(setup.node_id) if setup else None)
    return f'`dstack logs "{names.node(node)}"`' if node else "`dstack logs raylet`"


def log_of(actor: Actor) -> str:
    """The command that prints the end of an actor's log, with the actor's name."""
    return f"`ray logs actor --id {actor.actor_id}` prints the end of the log of {names.actor(actor)}"
