"""The reduced wait-for graph: which vertices can never proceed, and the open chains of all others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property

from msgspec.structs import replace

from dstack import words
from dstack.analysis.evidence.evidence import Evidence
from dstack.analysis.findings.vertex_roles import VertexRoles
from dstack.analysis.graph.group_ledgers import GroupLedgers
from dstack.analysis.graph.object_waits import may_be_idle
from dstack.analysis.index.ray_libraries import is_machinery_actor
from dstack.analysis.index.sample_index import SampleIndex, key_of_task
from dstack.analysis.index.shown_frames import is_of_dstack
from dstack.analysis.index.subjects import workers_of_jobs
from dstack.analysis.naming.descriptions import in_words
from dstack.analysis.solve import reduction
from dstack.analysis.solve.open_chains import OpenChain, open_chains
from dstack.analysis.solve.reduction import Digraph
from dstack.analysis.solve.requirements import stuck_in, targets_of, waits_of
from dstack.model.diagnosis import Progress, Vertex
from dstack.model.vertex_keys import Key
from dstack.words import grouped


class ReducedGraph(VertexRoles):
    """The input of all rules: the confirmed graph, ``stuck`` vertices, and open chains.

    Without ``evidence``, as for one sample alone, nothing is known of progress.
    """

    def __init__(self, index: SampleIndex, vertices: Mapping[Key, Vertex], evidence: Evidence | None = None) -> None:
        super().__init__(index, vertices, evidence.rest if evidence and evidence.has_second_sample else None)
        self._evidence = evidence
        self.waits = waits_of(vertices.values())
        self._endable = waits_of(vertices.values(), is_cut_short=True)
        self.stuck = self._residue()
        self.vertices = self._without_starting_supervisors()
        self._at_rest: dict[tuple[tuple[str, ...], frozenset[Key]], bool] = {}

    @property
    def watched_s(self) -> float | None:
        """How long all confirmed waits were observed at least; None without a second sample."""
        return self._evidence.watched_s if self._evidence else None

    @cached_property
    def ledgers(self) -> GroupLedgers:
        """The ledgers of the process groups."""
        return GroupLedgers(self.index)

    @cached_property
    def stuck_unless_cut_short(self) -> set[Key]:
        """What can never proceed if no target fails and nothing cancels a wait."""
        return stuck_in(self.waits)

    def _without_starting_supervisors(self) -> Mapping[Key, Vertex]:
        """The vertices; only what could never proceed otherwise may be ended by actors that are being created.

        Each of them may be a supervisor, which is hardly ever so.
        """
        keys = {key_of_task(self.index, task.task_id) for task in self.index.creations.values()}
        if not keys:
            return self.vertices
        found = dict(self.vertices)
        for key in found.keys() - self.stuck_unless_cut_short:
            wait = found[key].wait
            others = tuple(one for one in wait.cut_short_by if one.vertex not in keys) if wait else ()
            if wait is not None and len(others) < len(wait.cut_short_by):
                found[key] = replace(found[key], wait=replace(wait, cut_short_by=others))
        return found

    def _residue(self) -> set[Key]:
        """What can never proceed.

        Polling loops and suspected waits alone are no deadlock: other input may end them. Their waits are removed.
        """
        while True:
            stuck = stuck_in(self._endable)
            suspected = [key for key in stuck if (wait := self.vertices[key].wait) and wait.is_suspected]
            cores = reduction.cores(self.waits, reduction.stuck_graph(self.waits, stuck)) if suspected else []
            soft = {key for core in cores if not any(map(self._is_hard, core)) for key in core.intersection(suspected)}
            if not soft:
                return stuck
            for key in soft:
                del self.waits[key], self._endable[key]

    def _is_hard(self, key: Key) -> bool:
        """Whether it is an execution, task or placement group in a wait that no idle service has."""
        vertex = self.vertices[key]
        is_soft = vertex.wait is None or vertex.wait.polls is not None or may_be_idle(vertex.wait)
        return vertex.is_counted and not is_soft

    @cached_property
    def executions_of(self) -> dict[str, list[Key]]:
        """The executions by their workers."""
        found = (vertex for vertex in self.vertices.values() if vertex.kind == "execution" and vertex.worker_id)
        return grouped((vertex.worker_id or "", vertex.key) for vertex in found)

    def may_act(self, key: Key) -> bool:
        """Whether it is code of the user, or another program, that goes on or waits for what does, and may do more.

        Not so if its source shows that it cancels and kills nothing, and while it waits for a check by dstack.
        """
        if key in self.stuck:
            return False
        vertex = self.vertices[key]
        frames = self.index.frames_of_vertex(vertex)
        if vertex.child_pid is not None and not frames:
            return True
        if not self.is_in_users_code(key):
            return False
        own = [frame for frame in frames if frame.origin == "user"]
        may_stop = any(frame.may_stop for frame in own) and not own[0].only_polls
        return may_stop and not any(map(is_of_dstack, frames))

    def are_at_rest(self, jobs: tuple[str, ...], besides: frozenset[Key] = frozenset()) -> bool:
        """Whether these jobs were read completely and did nothing between the samples, ``besides`` these executions."""
        if (jobs, besides) not in self._at_rest:
            self._at_rest[jobs, besides] = self._are_at_rest(jobs, besides)
        return self._at_rest[jobs, besides]

    def _are_at_rest(self, jobs: tuple[str, ...], besides: frozenset[Key]) -> bool:
        if self.rest is None or not self.unread_jobs.isdisjoint((*jobs, None)):
            return False
        if any(vertex.key not in besides for vertex in self.possible_wakers(jobs)):
            return False
        progress = self.progress(jobs)
        return self.rest.are_idle(self._own_workers(jobs)) and not (progress and progress.has_moved)

    @cached_property
    def live_jobs(self) -> tuple[str, ...]:
        """The jobs that have processes."""
        return tuple(sorted({worker.job_id for worker in self.index.present_workers if worker.job_id}))

    def jobs_in_question(self, job_id: str | None) -> tuple[str, ...]:
        """One job if given, else all live ones."""
        return self.live_jobs if job_id is None else (job_id,)

    def running(self, jobs: Iterable[str], besides: Set[Key] = frozenset()) -> Iterator[Vertex]:
        """The executions of these jobs that run and do not wait, ``besides`` these and what waits for a check."""
        runners = (vertex for job in jobs for vertex in self.runners.get(job, ()))
        others = (vertex for vertex in runners if vertex.wait is None and vertex.key not in besides)
        return (vertex for vertex in others if not any(map(is_of_dstack, self.index.frames_of_vertex(vertex))))

    def have_moved(self, jobs: tuple[str, ...]) -> bool:
        """Whether tasks of these jobs started or ended between the samples, or a process of theirs used a CPU."""
        progress = self.progress(jobs)
        if progress is not None and progress.has_moved:
            return True
        return self.rest is not None and not self.rest.are_unused(self._own_workers(jobs))

    def _own_workers(self, jobs: tuple[str, ...]) -> list[str]:
        """The processes of the user's code of these jobs, not the machinery of libraries."""
        actors = self.index.actors
        pairs = ((one.worker_id, actors.get(one.actor_id or "")) for one in workers_of_jobs(self.index, jobs))
        return [worker_id for worker_id, actor in pairs if actor is None or not is_machinery_actor(actor)]

    def possible_wakers(self, jobs: Iterable[str]) -> Iterator[Vertex]:
        """The executions of these jobs, or of unknown ones, that run or may run."""
        for job in (*jobs, None):
            yield from self.runners.get(job, ())

    def progress(self, jobs: tuple[str, ...]) -> Progress | None:
        """What moved in these jobs between the samples."""
        return self._evidence.progress.of(jobs) if self._evidence else None

    @cached_property
    def certain(self) -> set[Key]:
        """What can never proceed by waits that both samples show, without any assumption."""
        confirmed = (vertex for vertex in self.vertices.values() if vertex.is_confirmed)
        return stuck_in(waits_of(confirmed, proven_only=True, is_cut_short=True))

    @cached_property
    def confirmed(self) -> set[Key]:
        """What can never proceed by waits that both samples show, if their assumptions hold."""
        return stuck_in(waits_of((v for v in self.vertices.values() if v.is_confirmed), is_cut_short=True))

    def assumed(self, keys: Set[Key]) -> tuple[str, ...]:
        """The assumptions that these depend on; none if they are certain, or not confirmed."""
        if keys <= self.certain or not keys <= self.confirmed:
            return ()
        waits = [wait for key in keys if (wait := self.vertices[key].wait)]
        texts = sorted({in_words(one) for wait in waits for one in wait.assumed})
        loops = sorted({wait.polls for wait in waits if wait.polls})
        if not loops:
            return tuple(texts)
        shown, more = loops[: words.SHOWN], len(loops) - words.SHOWN
        places = words.listed([*shown, f"{more} more places"] if more > 0 else shown)
        polls = f"the {words.word(len(loops), 'loop')} at {places} only {words.word(len(loops), 'polls', 'poll')}"
        return (polls, *texts)

    @cached_property
    def graph(self) -> Digraph[Key]:
        """The stuck vertices, each with the stuck vertices that it needs."""
        return reduction.stuck_graph(self.waits, self.stuck)

    @cached_property
    def chains(self) -> list[OpenChain]:
        """The separate open chains of waits that may end."""
        return open_chains(self.vertices, self.stuck, self._links)

    def linked_to(self, key: Key) -> Sequence[Key]:
        """The waits in the processes at the other ends of the pipes and sockets of a wait."""
        return self._links.get(key, ())

    @cached_property
    def _links(self) -> dict[Key, list[Key]]:
        """The waits in the processes at the other ends of the pipes and sockets of a wait, also by native threads."""
        found: dict[Key, list[Key]] = {}
        waiters = [vertex for vertex in self.vertices.values() if vertex.kind == "execution" and vertex.wait]
        by_process = grouped(((vertex.worker_id, vertex.child_pid), vertex.key) for vertex in waiters)
        for vertex in waiters:
            for end in vertex.wait.ends if vertex.wait else ():
                places = self.index.places_of(vertex.worker_id or "", end)
                others = (key for _, place in places if place for key in by_process.get(place, ()))
                found.setdefault(vertex.key, []).extend(others)
        return found

    def behind(self, keys: Iterable[Key]) -> tuple[Key, ...]:
        """All vertices that are stuck because they depend on these."""
        return tuple(sorted(reduction.behind(self.graph, keys), key=str))

    def directly_behind(self, keys: Iterable[Key]) -> set[Key]:
        """The counted vertices that are stuck because they wait for one of these, directly or through helpers."""
        start = level = set(keys)
        found: set[Key] = set()
        while level:
            level = {waiter for key in level for waiter in self.graph.predecessors(key)} - start - found
            found |= level
            level = {key for key in level if not self.is_counted(key)}
        return set(filter(self.is_counted, found))

    def pollers_of(self, keys: Iterable[Key]) -> tuple[Key, ...]:
        """The waiters with a timeout for any of these, directly or through helpers."""
        found: set[Key] = set()
        pending = list(keys)
        while pending:
            new = set(self._pollers.get(pending.pop(), ())) - found
            found |= new
            pending += (key for key in new if not self.is_counted(key))
        return tuple(sorted(filter(self.is_counted, found), key=str))

    @cached_property
    def _pollers(self) -> dict[Key, list[Key]]:
        pollers: dict[Key, list[Key]] = defaultdict(list)
        for vertex in self.vertices.values():
            if vertex.wait is not None and vertex.wait.is_timed:
                for target in targets_of(vertex):
                    pollers[target].append(vertex.key)
        return pollers
