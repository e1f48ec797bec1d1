"""The words of facts: what each vertex is called, and why it is so. There is one row for each kind of fact.

A row is a text with a place for each thing that the fact is about, or a function of these things.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from dstack import words
from dstack.analysis.index.ray_libraries import thread_name
from dstack.analysis.naming import names
from dstack.call_sites import ASYNC_LOCK, ASYNC_SEMAPHORE
from dstack.model import vertex_facts
from dstack.model.diagnosis import SlotLimit, Vertex, Wait
from dstack.model.snapshot import Actor, Job, Node, PlacementGroup
from dstack.observed.calls import ProcessGroup
from dstack.observed.node import EnvironmentSetup
from dstack.observed.processes import StartPhase

Row: TypeAlias = "str | Callable[..., str]"
LONGEST_COMMAND, LONGEST_OUTPUT, LONGEST_REASON = 60, 80, 160
WORKER_PROCESSES = "worker processes"
NO_AFFINITY = "an affinity to a node would explain that, but Ray does not report affinities"
PHASES: Mapping[StartPhase, str] = {
    "start": "",
    "import": " (in an import)",
    "setup hook": " (in its worker_process_setup_hook)",
}


def describe(vertex: Vertex) -> str:
    """What a vertex is called: ``Left.ping``, ``end of actor Left "l", which holds 1 CPU``."""
    return in_words(vertex.subject)


def labels_of(vertices: Iterable[Vertex]) -> list[str]:
    """The different names of these."""
    return sorted({describe(vertex) for vertex in vertices})


def any_of(vertices: Iterable[Vertex]) -> str:
    """``Left.ping or Right.ping``."""
    return words.listed(labels_of(vertices), " or ")


def in_words(fact: vertex_facts.Fact) -> str:
    """A fact in words, as a part of a sentence."""
    row = _row(fact)
    return row.format(*map(operand_in_words, fact.of)) if isinstance(row, str) else row(*fact.of)


def because_of(wait: Wait) -> str | None:
    """What the dependencies of a wait are assumed or inferred from, None if they were read."""
    return words.listed([in_words(one) for one in wait.assumed]) or (in_words(wait.inferred) if wait.inferred else None)


def limit_in_words(limit: SlotLimit) -> str:
    """``max_ongoing_requests (now 1) of Serve deployment Shop``."""
    now = f" (now {limit.most[0]})" if len(limit.most) == 1 else ""
    return f"max_ongoing_requests{now} of Serve deployment {limit.deployment}"


def _row(fact: vertex_facts.Fact) -> Row:
    match fact:
        case vertex_facts.Subject():
            return SUBJECTS[fact.what]
        case vertex_facts.Reason():
            return REASONS[fact.why]
        case vertex_facts.Assumption():
            return ASSUMPTIONS[fact.what]
        case vertex_facts.Never():
            return NEVER[fact.why]
        case _:
            raise TypeError(type(fact))


def operand_in_words(value: vertex_facts.Operand) -> str:
    """The name of a thing that a fact is about."""
    return NAMES[type(value)](value)


# What facts are about


def _request(value: vertex_facts.ResourceRequest) -> str:
    """``1 CPU in bundle 0 of placement group trainers``."""
    asked = names.amounts(value.amounts)
    if not value.is_in_group:
        return asked
    where = names.placement_group(value.group) if value.group else "its placement group"
    return f"{asked} in {f'bundle {value.bundle} of ' if value.bundle is not None else ''}{where}"


def _bundles(value: vertex_facts.Bundles) -> str:
    return names.bundles(value.group) + (f" ({value.group.strategy})" if value.has_strategy else "")


def _job(value: Job) -> str:
    return value.job_id + (f" ({names.script(value.entrypoint)})" if value.entrypoint else "")


NAMES: Mapping[type, Callable[..., str]] = {
    Actor: names.actor,
    vertex_facts.Bundles: _bundles,
    Job: _job,
    vertex_facts.Labels: lambda value: words.listed(list(map(names.labels, (value.values, *value.others))), " or "),
    Node: names.node,
    PlacementGroup: names.placement_group,
    ProcessGroup: names.process_group,
    vertex_facts.ProcessName: names.process,
    vertex_facts.RankList: lambda value: names.ranks(value.ranks, value.group),
    vertex_facts.Reason: in_words,
    vertex_facts.ResourceRequest: _request,
    vertex_facts.Subject: in_words,
    vertex_facts.TaskName: names.task,
    float: lambda value: f"{value:g}",
    int: str,
    str: str,
}

# Vertices


def _event_loop(group: str, actor: Actor | None) -> str:
    """``event loop of actor Server "s"``, with its concurrency group if that is not the default one."""
    of = f" of {names.actor(actor)}" if actor else ""
    return ("event loop" if group in ("", "default") else f'event loop "{group}"') + of


def _thread(name: str | int, process: vertex_facts.ProcessName | None) -> str:
    """``thread "pool" of driver train.py``; of one of Data's executors only its name."""
    if isinstance(name, str) and thread_name(name) != name:
        return f'thread "{thread_name(name)}"'
    own = f'thread "{name}"' if isinstance(name, str) else f"thread {name}"
    return f"{own} of {names.process(process)}" if process else own


def asyncio_task(function: str, name: str) -> str:
    """``asyncio task Pump.run "feeder"``: by its function, with the name that the program gave it, if any."""
    return " ".join(part for part in ("asyncio task", function, f'"{name}"' if name else "") if part)


def _child_thread(name: str | int, pid: int) -> str:
    return f'thread "{name}" of {names.child_process(pid)}'


def _setup(setup: EnvironmentSetup, node: Node | None, age_s: float) -> str:
    """``installation of a runtime environment by pip install torch (pid 7, node 10.0.0.1), which has run for 41 s``.

    Options of the command are left out.
    """
    where = f"pid {setup.pid}" + (f", {names.node(node)}" if node else "")
    shown = (word for word in setup.command.split() if not word.startswith("-"))
    parts = (word.rpartition("/")[2] if word.startswith("/") else word for word in shown)
    command = _shortened(" ".join(parts), LONGEST_COMMAND)
    output = f"; its last output: {_shortened(setup.output, LONGEST_OUTPUT)}" if setup.output else ""
    age = words.duration(age_s)
    return f"installation of a runtime environment by {command} ({where}), which has run for {age}{output}"


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _target(call: str, why: str | None) -> str:
    return f"target of {call}, which is unreadable" + (f": {why}" if why else "")


def _consumer(task: vertex_facts.TaskName, process: vertex_facts.ProcessName | None) -> str:
    return f"consumer of {names.task(task)}" + (f" in {names.process(process)}" if process else "")


def _scheduler(asked: vertex_facts.Operand, *because: vertex_facts.Reason) -> str:
    return f"scheduler, which has not placed {operand_in_words(asked) if asked else 'it'}{_colon(because)}"


def _colon(because: Iterable[vertex_facts.Reason]) -> str:
    """Reasons behind a colon; how long ago they were reported in brackets."""
    reasons = "; ".join(in_words(one) for one in because if one.why != "reported")
    ages = "".join(f" ({in_words(one)})" for one in because if one.why == "reported")
    return f": {reasons}{ages}" if reasons else ""


def _placement_group(group: PlacementGroup, made_for: str | None) -> str:
    """``placement group 1a2b3c4d``, or ``Train's worker group (group 1a2b3c4d)`` by what a library made it for."""
    whole = names.placement_group(group)
    return f"{made_for} ({whole.removeprefix('placement ')})" if made_for else whole


def _removal(group: PlacementGroup, bundles: vertex_facts.Operand, made_for: str | None) -> str:
    of_library = f" of {made_for}" if made_for else ""
    return f"removal of {names.placement_group(group)}{of_library}, which holds {operand_in_words(bundles)}"


def _starting_worker(phase: StartPhase, age_s: float, imported: str = "") -> str:
    """``worker process that has been starting for 12 s (imports torch)``."""
    where = f" ({imported})" if phase == "import" and imported else PHASES[phase]
    return f"worker process that has been starting for {words.duration(age_s)}{where}"


def _new_node(asked: vertex_facts.Operand, because: vertex_facts.Reason | None, expected: vertex_facts.Reason) -> str:
    """``node for 2 special that may still join: no node has any special, but the cluster is 40 s old``."""
    wanted = f" for {operand_in_words(asked)}" if asked else ""
    lacking = in_words(because) if because else ""
    if expected.why == "refused":
        return f"node{wanted}: {lacking}, and the autoscaler reports that it can add no such node now"
    return f"node{wanted} that may still join: {f'{lacking}, but ' if lacking else ''}{in_words(expected)}"


def _autoscaler(name: str, *reports: vertex_facts.Reason) -> str:
    """``autoscaler, which may add a node (2 nodes of type gpus are pending for 41 s)``: with its first report."""
    return f"{name}, which may add a node" + (f" ({in_words(reports[0])})" if reports else "")


def further_reports(vertex: Vertex) -> list[str]:
    """What an autoscaler reports that is not in its name."""
    reports = vertex.subject.of[2:] if vertex.subject.what == "autoscaler" else ()
    return [f"it reports: {operand_in_words(one)}" for one in reports]


def _pinned_arguments(task: vertex_facts.TaskName, size: int, age_s: float | None) -> str:
    """``merge uses 80 MiB and has run for 33 s``."""
    age = f" and has run for {words.duration(age_s)}" if age_s is not None else ""
    return f"{names.task(task)} uses {words.size(size)}{age}"


def _room_for_arguments(
    node: Node, own: int, held: int | None, total: int, share: float | None, *pins: vertex_facts.Subject
) -> str:
    """What the arguments of an owner's tasks need in a node's object store, and what those of running tasks hold."""
    store = f"the {words.size(total)} of the object store of {names.node(node)}" if total else names.node(node)
    wanted = f"up to {words.size(own)} of arguments" if own else "its arguments"
    others = f"{words.size(held)} of" if held is not None else "those of"
    limit = f"{100 * share:g} %" if share else "70 % (default)"
    by = f" ({'; '.join(map(in_words, pins))})" if pins else ""
    return f"room for {wanted} beside {others} running tasks{by}; they may take {limit} of {store}"


def _transfer_of_arguments(node: Node, requests: int, queued: int, pulled: int, restored: int, spilled: int) -> str:
    """What a raylet counts while requests wait for arguments: transfers, and objects that go to disk and back."""
    counts = (
        (queued, f"{words.plural(queued, 'object')} waiting to be pulled"),
        (pulled, f"{words.size(pulled)} being pulled"),
        (restored, f"{words.plural(restored, 'object')} being restored from disk"),
        (spilled, f"{words.plural(spilled, 'object')} being spilled to disk"),
    )
    reported = ", ".join(text for count, text in counts if count)
    waiting = f"{words.plural(requests, 'request')} {words.word(requests, 'waits', 'wait')} for arguments"
    return f"transfer of arguments to {names.node(node)}, where {waiting}{f': {reported}' if reported else ''}"


SUBJECTS: Mapping[vertex_facts.SubjectKind, Row] = {
    "asyncio task": lambda function, name, owner: f"{asyncio_task(function, name)} of {operand_in_words(owner)}",
    "batch": "batch of {}",
    "child process": names.child_process,
    "child thread": _child_thread,
    "client's request": "a client's request in Serve's proxy",
    "event loop": _event_loop,
    "exit": "exit of {} ({})",
    "named": "{}",
    "process": "{}",
    "queued request": "queued request {}",
    "stage": "stage {}.{}",
    "task": "{}",
    "thread": _thread,
    "training function": "training function {}",
    "transfer": "{} of tensors {:.8}",
    "arguments of no task": "none was seen to run there: Ray may have kept those of an ended one",
    "pinned arguments": _pinned_arguments,
    "placement group": _placement_group,
    "queue reader": "rank {} of queue {}",
    "queue writer": "the writer of queue {}",
    "ready ref": "PlacementGroup.ready()",
    "value": "value of {:.8}",
    "actor in no list": "actor that the control plane does not list",
    "argument": "argument, which was not observed",
    "call read once": "call of another rank, which was observed only once",
    "coroutine": "coroutine of {}, which is unreadable",
    "driver": "driver of job {}, which was not observed",
    "graph driver": "driver of a compiled graph, which is unreadable",
    "graph loop": "compiled-graph loop of {}, which is unreadable",
    "group in no list": "placement group that Ray does not list",
    "observed by nothing": "{}, which was not observed",
    "process in no list": "process that Ray does not list",
    "receiver": "worker that received the call but does not report it as running",
    "refs": "target of {}, which is unreadable",
    "replica": "replica {} of the deployment, which was not observed",
    "silent": "{}, whose core worker does not answer",
    "stack": "stack of {}, which is unreadable",
    "stage's thread": "thread of stage {}, which is unreadable",
    "target": _target,
    "thread of process": "thread {} of {}, which is unreadable",
    "unidentified thread": "unidentified thread that runs {}",
    "unread process": "unreadable process",
    "value of no owner": "value of {:.8}, which no reachable process reports as pending",
    "value of silent owner": "value of {:.8}, whose owner, {}, did not answer",
    "attempt": "next attempt of {}, which Ray is about to make",
    "autoscaler": _autoscaler,
    "available value": "value that is already available and being fetched",
    "caller": "caller, which has not sent it yet",
    "bytes in transit": "bytes that are on their way to it",
    "some thread of child": lambda pid: f"some thread of {names.child_process(pid)}",
    "child processes": "child process of {}",
    "client": "client outside of all running jobs that looks up {}",
    "consumer": _consumer,
    "creation": "creation of {} ({})",
    "end of job": "end of job {}, whose driver has ended",
    "ended call": "{}, which has just ended a call",
    "error of dead actor": "error for its caller, because {} has just died: {}",
    "error of removed group": "error for its caller, because {} was removed",
    "first replica": "first replica of Serve deployment {}",
    "free slot": "free slot of {}, or the transfer of its arguments",
    "free slot of replica": "free slot of replica {}, which the router has not found yet",
    "holder": "unidentified holder of {} on {}",
    "idle worker": "idle worker, which may receive a task or end",
    "library's asyncio task": lambda function, name: f"{asyncio_task(function, name)} of a library",
    "library's thread": 'thread "{}" of a library',
    "new node": _new_node,
    "new replica": "new replica of Serve deployment {}, which Serve's controller may start",
    "removed group": "removed {} (no code was seen to need the results)",
    "room for request": "room for {}",
    "room in group": "room in {} ({})",
    "scheduler": _scheduler,
    "scheduler state": "scheduler ({})",
    "setup": _setup,
    "signal": "handler of {}",
    "start of actor": "start of {} ({})",
    "starting worker": _starting_worker,
    "start of replica": "start or end of replica {} of Serve deployment {}",
    "step": "next step of {}, which was observed neither suspended nor running",
    "timer": "timer of {} that calls {}{}",
    "transfer of arguments": _transfer_of_arguments,
    "value of dead owner": "value of {:.8}, or an error, because its owner, {}, has just died: {}",
    "waker": "unknown waker",
    "worker start": lambda *because: f"start of a worker{_colon(because)}",
    "written value": "value that is already written and about to be read",
    "any holder": "a holder of any of it",
    "any of": "any of {}",
    "any thread": "any of {} threads",
    "any unread process": "an unreadable process",
    "calls of ranks": "call of {} in {}",
    "end of actor": "end of {}, which holds {}",
    "holders": "{} of the {} holders of {} on {}",
    "job": "code of job {}",
    "rank": "{} of {}",
    "receivers": "a task that received it as an argument",
    "removal": _removal,
    "room anywhere": "room on any node",
    "room for arguments": _room_for_arguments,
    "room on node": "room on {}",
    "some thread": "a thread of {}",
    "users": "code that can use {}",
}

# Reasons


def _there_are(nodes: int) -> str:
    return f"there {words.word(nodes, 'is', 'are')} {words.plural(nodes, 'node')}"


def _lost_node(node: Node, had: vertex_facts.Operand, until: float) -> str:
    """``node 10.0.0.7 had 2 special until 03:12:40``."""
    had_it = f"had {text}" if (text := operand_in_words(had)) else "was there"
    return f"{names.node(node)} {had_it} until {words.time_of_day(until)}"


def _pending_nodes(count: int, node_type: str, status: str, age_s: float | None) -> str:
    """``2 nodes of type gpus are pending (requested) for 41 s``."""
    since = f" for {words.duration(age_s)}" if age_s is not None else ""
    state = f" ({_shortened(status, LONGEST_OUTPUT)})" if status else ""
    return f"{words.plural(count, 'node')} of type {node_type} {words.word(count, 'is', 'are')} pending{state}{since}"


def _failed_launches(node_type: str, times: int, age_s: float | None, why: str) -> str:
    """``12 launches of type gpus have failed, the last one 4 s ago: InsufficientInstanceCapacity``."""
    ago = "" if age_s is None else f"{words.duration(age_s)} ago"
    begin = f"{words.plural(times, 'launch', 'launches')} of type {node_type} {words.word(times, 'has', 'have')} failed"
    begin += f", the last one {ago}" if ago else ""
    none = " ".join(filter(None, (f"its provider had no node of type {node_type}", ago)))
    return f"{begin if times else none}: {_shortened(why, LONGEST_REASON) if why else 'it gives no reason'}"


def _platform_event(kind: str, name: str, text: str, count: int, age_s: float | None) -> str:
    """``Pod train-gpu-worker-x7k2p: FailedScheduling: 0/3 nodes are available (7 times, the last one 12 s ago)``."""
    last = f"{'the last one ' * (count > 1)}{words.duration(age_s)} ago" if age_s is not None else ""
    when = ", ".join(filter(None, (words.times(count) if count > 1 else "", last)))
    return f"{kind} {name}: {_shortened(text, LONGEST_REASON)}" + (f" ({when})" if when else "")


def _came_and_went(nodes: int, longest_s: float | None, last_s: float, cause: str) -> str:
    """``3 nodes that had it have joined and left, after at most 41 s, the last one 12 s ago: ...``."""
    lives = f", after at most {words.duration(longest_s)}" if longest_s is not None else ""
    why = f": {_shortened(cause, LONGEST_REASON)}" if cause else ""
    return f"{nodes:,} nodes that had it have joined and left{lives}, the last one {words.duration(last_s)} ago{why}"


REASONS: Mapping[vertex_facts.ReasonKind, Row] = {
    "autoscaler failed": "it has failed: {}",
    "came and went": _came_and_went,
    "failed launches": _failed_launches,
    "pending nodes": _pending_nodes,
    "platform event": _platform_event,
    "refused": "it reports that it can add no such node now",
    "stale report": lambda age_s: f"its last report is {words.duration(age_s)} old",
    "queued future": "any thread of the executor may run the queued future",
    "with block": "it is in a with block of the lock",
    "async with block": "it is in an async with block of the lock",
    "items": "items of generators may be available already",
    "one of several": "one of several futures is enough, and which one is unknown",
    "any earlier call": "any of {} earlier calls of the same caller that wait for arguments",
    "any ender": "any of these may cause it",
    "any event loop": "it runs on one of {} event loops",
    "any holder": "any holder may release first",
    "any holders": "any {} of the {} holders may release first",
    "any lost argument": "any of the {} values of its owner's tasks that were lost and are made again",
    "any pending argument": "any of the {} pending refs that its owner passed as arguments",
    "any pending group": "one of the pending placement groups of its job",
    "any pending ref": "any of the {} pending refs that its process holds",
    "any running call": "any of the {} running calls may end first",
    "any running call of group": "any of the {} running calls of its concurrency group may end first",
    "any setup": "Ray does not say for which task an environment is installed",
    "any starting worker": "Ray does not say for which task a worker starts",
    "any thread": "it runs on one of {} threads",
    "kept values": "it has produced {} values that are still kept, and waits outside its own code",
    "only pending ref": "the only pending ref that its process holds",
    "ready ref": "a ref without a task is one of PlacementGroup.ready(), of any pending group",
    "unread stack": "its process holds pending refs, and its stack is unreadable",
    "bundles do not fit": "the nodes of the cluster cannot hold it",
    "few nodes": lambda nodes, bundles: f"{_there_are(nodes)} for {words.plural(bundles, 'bundle')}",
    "few nodes fit": "only {} of them fit on different nodes",
    "group too large": "no single node can hold all of it",
    "lacking bundle": "no bundle has that much",
    "lacking labels": "no node has the labels {}",
    "lacking nodes with labels": "no node with that has the labels {}",
    "lacking resource": "no node has any {}",
    "lacking total": "all nodes together have {}",
    "most of a node": "the most a node has is {}",
    "not all on one node": "no single node has all of it",
    "not on any node": "no node can hold {}",
    "room for few": "there is room for {} of them",
    "lost node": _lost_node,
    "node joined": lambda node, ago_s: f"{names.node(node)} joined {words.duration(ago_s)} ago",
    "node left": lambda node, ago_s: f"{names.node(node)} left {words.duration(ago_s)} ago",
    "young cluster": lambda age_s: f"the cluster is {words.duration(age_s)} old",
    "free on node": "it is free on {}",
    "no request": "it asks for no resources",
    "room for bundles": "there is room for each bundle",
    "not said": "{}, and Ray does not say why",
    "environment first": lambda node, parts: f"{names.node(node)} prepares its runtime environment ({parts}) first",
    "infeasible on node": lambda node, requests: (
        f"{names.node(node)} counts {words.plural(requests, 'request')} that no node of the cluster satisfies; "
        f"{NO_AFFINITY}"
    ),
    "late starts": lambda node, late: (
        f"since its raylet started, {words.plural(late, 'worker process', WORKER_PROCESSES)} of {names.node(node)} "
        "died, or took too long, before connecting"
    ),
    "lost starts": lambda node, starting: (
        f"{names.node(node)} expects {words.plural(starting, 'worker process', WORKER_PROCESSES)} to connect, but none "
        "is starting there"
    ),
    "no start": lambda node, requests: (
        f"{words.plural(requests, 'request')} on {names.node(node)} {words.word(requests, 'waits', 'wait')} for a "
        "worker process, and none has been started"
    ),
    "queued on node": lambda node, requests, lacking: (
        f"{words.plural(requests, 'request')} {words.word(requests, 'waits', 'wait')} on {names.node(node)}, which "
        f"lacks {operand_in_words(lacking)}; {NO_AFFINITY}"
    ),
    "reported": lambda age_s: f"{words.duration(age_s)} ago",
    "start limit": lambda node, starting, queued: (
        f"{names.node(node)} is starting {words.plural(starting, 'worker process', WORKER_PROCESSES)}, its most at a "
        f"time, and {queued:,} {words.word(queued, 'waits', 'wait')}"
    ),
    "unconnected starts": lambda node, starting: (
        f"{words.plural(starting, 'worker process', WORKER_PROCESSES)} of {names.node(node)} "
        f"{words.word(starting, 'has', 'have')} not connected yet"
    ),
}


def lock_in_words(site: str) -> str:
    """``a semaphore`` or ``a lock``, by the call site that acquires it."""
    return "a semaphore" if site == ASYNC_SEMAPHORE.id else "a lock"


def _lock_holder(site: str, holder: str) -> str:
    """``a lock is held by the thread in a with block of it``, by the call site that acquires it."""
    statement = "an async with" if site in (ASYNC_LOCK.id, ASYNC_SEMAPHORE.id) else "a with"
    return f"{lock_in_words(site)} is held by the {holder} in {statement} block of it"


def _waits_for_memory(requests: int, node: Node) -> str:
    which = "the request" if requests == 1 else f"one of the {requests:,} requests"
    return f"it is {which} that Ray reports on {names.node(node)} to wait for object store memory"


def _waits_for_arguments(requests: int, node: Node) -> str:
    which = "the request" if requests == 1 else f"one of the {requests:,} requests"
    return f"it is {which} that Ray reports on {names.node(node)} to wait for arguments"


def _declared_group(call: str, group: str) -> str:
    name = f"concurrency group {group}" if group else "default concurrency group"
    return f"{call} runs in the {name} of its actor, as declared"


ASSUMPTIONS: Mapping[vertex_facts.AssumptionKind, Row] = {
    "among held refs": "the refs that it waits for are among those that its process holds",
    "declared group": _declared_group,
    "does not fail": "{} does not fail: its source shows no exception",
    "dropped value": "only code of its process drops a value that was read from a graph's channel and not copied",
    "idle library": "library code that was idle in every reading stays idle",
    "keeps node": "the request for {} stays on {}, where Ray queues it, as one with an affinity to that node",
    "lock holder": _lock_holder,
    "only the ends": "only the processes at the other ends of its pipes, sockets or file locks can end the wait",
    "nothing stops": "nothing cancels or kills one of them, as {} could",
    "no others": "only code that was observed to hold the object can end the wait on it",
    "rank elsewhere": "no process that the job has not started comes as {} of {}",
    "rank in no group": "{} of {} will be an actor of the same class that is in no group yet",
    "rank not created": "{} of {} will be an actor of the same class that is not created yet",
    "reported": "{}",
    "store": "no process that the job has not started {}",
    "same call": "{} was in the same {} in all samples",
    "waits for arguments": _waits_for_arguments,
    "waits for memory": _waits_for_memory,
}


def _forked(call: str, file: str, line: int | None) -> str:
    where = f" at {file.rpartition('/')[2]}:{line}" if line is not None else ""
    return f"waits in {call}{where} in a forked process, where Ray does not work"


def _lost_lock(owner: str, place: str) -> str:
    thread = f"thread {owner} of its parent" if owner else "a thread of its parent"
    at = f" (now at {place})" if place else ""
    return f"waits for a lock that {thread}{at} held when this process was forked; that thread does not exist in it"


def _unsatisfiable(asked: vertex_facts.Operand, because: vertex_facts.Reason) -> str:
    return f"asks for {operand_in_words(asked) if asked else 'a node'}, but {in_words(because)}"


def _unsatisfied(asked: vertex_facts.Operand, because: vertex_facts.Reason, joined_s: float) -> str:
    return f"{_unsatisfiable(asked, because)}, and none has joined for {words.duration(joined_s)}"


NEVER: Mapping[vertex_facts.NeverKind, Row] = {
    "dead actor": "{} is dead: {}",
    "dead owner": "its owner, {}, died: {}",
    "ended training": "makes no more calls: its training function has ended",
    "forked": _forked,
    "lost lock": _lost_lock,
    "queue end": "no process of its host has this end of the queue any more",
    "removed group": "{}, which it must run in, was removed",
    "unsatisfiable": _unsatisfiable,
    "unsatisfied": _unsatisfied,
}
