"""Waits in the channels of compiled graphs: a read waits for the writing stage, a write for slow readers.

Both ends of a channel count the executions, so it is known which of them is ahead. A reader of a value that is written
already only has to read it. A writer may wait for room although all readers have read all values: then a reader still
refers to a value. Large values are not copied, and stay in the channel as long as they are in use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from dstack.analysis.graph.builder import GraphBuilder, call_beyond_kind, for_any
from dstack.analysis.graph.users import Users
from dstack.analysis.index.sample_index import is_graph_loop
from dstack.libraries.compiled_graphs import WRITE
from dstack.model.diagnosis import CallName, Group, Target, Vertex, Wait
from dstack.model.vertex_facts import assumption, subject
from dstack.model.vertex_keys import TaskKey, ThreadKey
from dstack.observed.calls import Call, ChannelCall
from dstack.observed.processes import GraphChannel, GraphStage
from dstack.words import grouped

DROPPED = assumption("dropped value")


@dataclass(frozen=True, slots=True)
class _End:
    """One end of a channel: a stage or the graph's driver, with its worker."""

    worker_id: str
    stage: GraphStage


def add_channel_waits(graph: GraphBuilder, users: Users) -> None:
    """Complete the waits of executions that are in a channel, whose stages were read."""
    if not any(process.graph_stages for process in graph.index.processes.values()):
        return
    channels = _Channels(graph, users)
    for vertex in list(graph.vertices.values()):
        call = graph.index.call_of_vertex(vertex) if vertex.kind == "execution" else None
        if call is not None and isinstance(call.need, ChannelCall) and (wait := channels.wait(vertex, call, call.need)):
            graph.add(replace(vertex, wait=wait))


class _Channels:
    def __init__(self, graph: GraphBuilder, users: Users) -> None:
        self._graph = graph
        self._index = graph.index
        self._users = users

    def wait(self, vertex: Vertex, call: Call, blocked: ChannelCall) -> Wait | None:
        """The wait of one end of a channel; None if its stage was not read."""
        own = self._own(vertex.worker_id or "", blocked)
        if own is None:
            return None
        ends = own.stage.outputs if blocked.is_write else own.stage.inputs
        channels = [ends[place] for place in blocked.pending if place < len(ends)]
        wait = Wait(
            kind="channel read",
            groups=(),
            timeout_s=call.timeout_s,
            called=call_beyond_kind(call),
            fails_after_s=blocked.fails_after_s,
        )
        if not blocked.is_write:
            targets = [tuple(self._value(own, channel, blocked.count)) for channel in channels]
            return replace(wait, groups=_groups(targets), total=len(targets), needed=len(targets)) if targets else None
        if not all(channel.buffers for channel in channels):
            return None  # the capacity is unknown
        late = [target for channel in channels for target in self._late(own, channel)]
        if late:
            return replace(wait, kind="channel write", groups=_groups(late), total=len(late), needed=len(late))
        return self._kept(own, channels, wait)

    def _own(self, worker_id: str, blocked: ChannelCall) -> _End | None:
        process = self._index.process(worker_id)
        stages = process.graph_stages if process else ()
        found = (one for one in stages if (one.writer if blocked.is_write else one.reader) == blocked.end)
        return next((_End(worker_id, one) for one in found), None)

    # Reads

    def _value(self, own: _End, channel: GraphChannel, number: int) -> Iterator[Target]:
        """What writes a value of a channel: one stage, or any code of a driver.

        ``number`` is the number of the value if that is known to be later than the next one.
        """
        writers = self._ends(channel, is_output=True)
        if any(one.stage.writes > max(own.stage.reads, number) for one in writers):
            written = subject("written value")
            yield self._graph.unknown("fetched value", own.worker_id, own.stage.reader, subject=written)
        elif writers:
            yield from self._code(writers[0])
        else:
            yield from self._absent(channel.writer)

    # Writes

    def _late(self, own: _End, channel: GraphChannel) -> Iterator[tuple[Target, ...]]:
        """For each reader that has not read the value which the next one replaces: what must read it."""
        readers = self._ends(channel, is_output=False)
        for reader in readers:
            if reader.stage.reads <= own.stage.writes - channel.buffers:
                yield tuple(self._code(reader))
        present = {self._index.workers[reader.worker_id].actor_id for reader in readers}
        made_by = {reader.worker_id for reader in readers if not reader.stage.method}
        for actor_id in channel.readers:
            actor = self._index.actors.get(actor_id)
            if actor_id not in present and (actor is None or actor.owner_id not in made_by):
                yield tuple(self._absent(actor_id))

    def _kept(self, own: _End, channels: Sequence[GraphChannel], wait: Wait) -> Wait | None:
        """The wait for readers that have read the value, one of which still refers to it."""
        readers = [one for channel in channels for one in self._ends(channel, is_output=False)]
        if not readers:
            return None
        workers = dict.fromkeys(reader.worker_id for reader in readers)
        users = [user for worker in workers for user in self._users.of_process(worker)]
        several = tuple(dict.fromkeys(self._users.alternatives.without_idle(users))) or tuple(dict.fromkeys(users))
        unknown = self._graph.unknown_waker(
            wait.called or CallName(site=WRITE.id, text="channel write"), own.worker_id, own.stage.writer
        )
        return replace(
            wait,
            kind="kept value",
            groups=for_any(*several),
            total=len(several),
            assumed=(DROPPED,),
            proven_groups=for_any(unknown),
        )

    # Ends of channels

    @cached_property
    def _by_side(self) -> dict[tuple[bool, object], dict[_End, None]]:
        """The stages by each ref of their outputs (True) and inputs (False), and by their writer and readers."""
        found: dict[tuple[bool, object], dict[_End, None]] = defaultdict(dict)
        for worker_id, process in self._index.processes.items():
            for stage in process.graph_stages if worker_id in self._index.workers else ():
                for is_output, channels in ((True, stage.outputs), (False, stage.inputs)):
                    for name in (name for channel in channels for name in (*channel.refs, _sides(channel))):
                        found[is_output, name][_End(worker_id, stage)] = None
        return found

    def _ends(self, channel: GraphChannel, *, is_output: bool) -> list[_End]:
        """The stages at one side of a channel.

        The two sides of a channel between hosts that has grown know different refs: then the writer and the readers
        identify it, if there is only one such channel.
        """
        found = dict.fromkeys(end for ref in channel.refs for end in self._by_side.get((is_output, ref), ()))
        similar = [] if found or not channel.refs else [*self._by_side.get((is_output, _sides(channel)), ())]
        return [*found] or (similar if len(similar) == 1 else [])

    def _code(self, end: _End) -> Iterator[Target]:
        """What can proceed at an end of a channel: the thread of a stage, or any code of the driver's process."""
        key = ThreadKey(end.worker_id, end.stage.os_thread_id)
        if end.stage.method and key in self._graph.vertices:
            yield Target(vertex=key)
        elif end.stage.method:
            thread = subject("stage's thread", end.stage.method)
            yield self._graph.unknown("thread", end.worker_id, end.stage.os_thread_id, subject=thread, unobserved=True)
        else:
            users = list(self._users.of_process(end.worker_id))
            yield from list(self._users.alternatives.without_idle(users)) or users

    @cached_property
    def _loops(self) -> dict[str, list[str]]:
        return grouped(
            (task.actor_id, task.task_id)
            for task in self._index.tasks_reported
            if task.actor_id and is_graph_loop(task) and task.task_id not in self._index.worker_of_task
        )

    def _absent(self, actor_id: str) -> Iterator[Target]:
        """What a channel needs from an actor without a stage: the start of its loop, if that is pending."""
        if loops := self._loops.get(actor_id):
            yield from (Target(vertex=TaskKey(task_id)) for task_id in loops)
            return
        actor = self._index.actors.get(actor_id)
        end = subject("graph loop", actor) if actor else subject("graph driver")
        yield self._graph.unknown("channel", actor_id, subject=end, unobserved=True)


def _groups(several: Sequence[tuple[Target, ...]]) -> tuple[Group, ...]:
    """One group for each tuple: any of its targets suffices."""
    return tuple(dict.fromkeys(Group(needs=1, targets=targets) for targets in several))


def _sides(channel: GraphChannel) -> tuple[str, tuple[str, ...]]:
    return channel.writer, channel.readers
