"""What a user can call processes and their executions: ``stacks``, ``logs`` and the assistant select by it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property

from dstack.analysis.index.ranks import RANK
from dstack.analysis.stacks.app_threads import Execution, kind_of
from dstack.analysis.stacks.stack_tree import TextFilter
from dstack.analysis.views.all_stacks import Stacks
from dstack.model.snapshot import Worker
from dstack.model.vertex_keys import Key
from dstack.words import close_to

SORTS = ("pid", "node", RANK, "actor", "driver", "task", "worker")
"""Words that may stand before a name, as in reports: ``pid 7``, ``actor Trainer``."""
ID = re.compile(r"[0-9a-f]{4,56}")
"""The beginning of an id, long enough to mean one."""

Selection = dict[str, set[Key]]
"""The keys of executions by worker; an empty set stands for the whole process."""


def joined(words: Iterable[str]) -> list[str]:
    """``pid 7`` of ``pid`` and ``7``: each name with the sort before it."""
    names: list[str] = []
    for one in words:
        if names and names[-1] in SORTS:
            names[-1] += f" {one}"
        else:
            names.append(one)
    return names


class ProcessNames:
    """The names of the processes of one sample."""

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks
        self._index = stacks.index
        self._workers = stacks.index.snapshot.workers
        self._hosts = {node.node_id: node.hostname for node in stacks.index.snapshot.nodes}

    def called(self, what: str) -> Selection:
        """What has this name or, if nothing has, these words (:class:`TextFilter`).

        A process is called by its pid or that of a child, the class or name of its actor, its script, the address or
        name of its node, or the beginning of an id; an execution by its function.
        """
        sort, _, rest = what.partition(" ")
        name = (rest if sort in SORTS and rest else what).casefold()
        if sort == RANK and rest:
            return self._stacks.found(TextFilter(f"{RANK}:{name}"))
        found: Selection = {one.worker_id: set() for one in self._workers if name in self._of_worker[one.worker_id]}
        found = found or {one.worker_id: set() for one in self._workers if _has_id(one, name)} or self._running(name)
        return found or ({} if sort == "pid" or name.isdigit() else self._stacks.found(TextFilter(what)))

    def close_to(self, what: str) -> str:
        """``Did you mean a or b? ``: names of this sample; empty if none is like it."""
        names = (name for worker in self._workers for name in self._titles(worker))
        functions = (one.name for one in self._stacks.running().executions)
        return close_to(what, filter(None, (*names, *functions)))

    @cached_property
    def _of_worker(self) -> dict[str, set[str]]:
        return {one.worker_id: {name.casefold() for name in self._names(one) if name} for one in self._workers}

    def _names(self, worker: Worker) -> Iterator[str]:
        process = self._index.process(worker.worker_id)
        children = process.children if process else ()
        yield from (str(pid) for pid in (worker.pid, *(child.pid for child in children)))
        yield from (worker.ip, self._hosts.get(worker.node_id, ""), *self._titles(worker))

    def _titles(self, worker: Worker) -> Iterator[str]:
        """The class and name of an actor, and the script of a driver."""
        actor = self._index.actors.get(worker.actor_id or "")
        if actor is not None:
            yield from (actor.class_name, actor.class_name.rpartition(".")[2], actor.name)
        yield kind_of(self._index, worker, None).partition(" ")[2]

    def _running(self, name: str) -> Selection:
        """The executions of a function."""
        found: Selection = {}
        for one in self._stacks.running().executions:
            if name in _functions(one):
                found.setdefault(one.worker_id, set()).add(one.key)
        return found


def _has_id(worker: Worker, name: str) -> bool:
    ids = (worker.actor_id, worker.worker_id, worker.node_id)
    return bool(ID.fullmatch(name)) and any(one.startswith(name) for one in ids if one)


def _functions(execution: Execution) -> set[str]:
    """``Trainer.step`` and ``step``."""
    name = execution.name.casefold()
    return {name, name.rpartition(".")[2]}
