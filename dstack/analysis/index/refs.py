"""The ObjectRefs of one sample, indexed: which have a value, which processes hold, pass and own them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

from dstack.analysis.index.process_index import ProcessIndex
from dstack.model.snapshot import ACTOR_HANDLE, actor_of_task, producer_task_id
from dstack.observed.node import Ref
from dstack.words import grouped

ENDED = ("FINISHED", "FAILED")
FIRST_PUT = 100_000_001
"""The index of the first ref that a task creates itself; smaller ones are its return values (Ray 2.46 to 2.60)."""


class RefIndex:
    """Lookups in what processes report of refs, and in the calls that wait for them."""

    def __init__(self, processes: ProcessIndex) -> None:
        self._processes = processes
        self._available = processes.known.values

    def has_value(self, ref: str) -> bool:
        """Whether some process reports that the ref has a value, or an error in place of it.

        A ref that the task's executor owns itself was made by ``ray.put`` and is known with its size at once. A value
        that was lost keeps the size it had, though its task runs again.
        """
        known = self.reports_of.get(ref, ())
        if not known and ref in self._available:
            return True
        return not any(map(_is_remade, known)) and any(one.size_bytes >= 0 or one.state in ENDED for one in known)

    @cached_property
    def reports_of(self) -> dict[str, list[Ref]]:
        """By ref: the reports of all processes that know it."""
        return grouped((ref.ref, ref) for ref in self._processes.refs_reported)

    @cached_property
    def held_by(self) -> dict[str, list[Ref]]:
        """By worker: the refs in its variables, by its own report; its memory may show more."""
        return grouped(
            (ref.holder_id, ref)
            for ref in self._processes.refs_reported
            if ref.local_uses and not ref.ref.startswith(ACTOR_HANDLE)
        )

    @cached_property
    def actors_held_by(self) -> dict[str, list[str]]:
        """By worker: the actors of which it has a handle in its variables, by its own report."""
        return grouped(
            (ref.holder_id, actor_of_task(producer_task_id(ref.ref)) or "")
            for ref in self._processes.refs_reported
            if ref.local_uses and ref.ref.startswith(ACTOR_HANDLE)
        )

    @cached_property
    def holders_of_task(self) -> dict[str, list[str]]:
        """By task: the workers that have a ref of its values in their variables, by their own reports."""
        return grouped(
            (producer_task_id(ref.ref), ref.holder_id)
            for ref in self._processes.refs_reported
            if ref.local_uses and not ref.ref.startswith(ACTOR_HANDLE)
        )

    @cached_property
    def handles_of(self) -> dict[str, list[Ref]]:
        """By actor: the handles of it that processes report."""
        return grouped(
            (actor_of_task(producer_task_id(ref.ref)) or "", ref)
            for ref in self._processes.refs_reported
            if ref.ref.startswith(ACTOR_HANDLE)
        )

    @cached_property
    def pending_arguments_of(self) -> dict[str, list[str]]:
        """By worker: refs that its submitted tasks take as arguments, and that have no value as far as it knows.

        A borrowed ref is among them also if its owner reports a value: the borrower may not know it yet.
        """
        return grouped((ref.holder_id, ref.ref) for ref in self._processes.refs_reported if self._is_awaited(ref))

    @cached_property
    def lost_arguments_of(self) -> dict[str, list[str]]:
        """By worker: the refs that its submitted tasks take, and whose value was lost and is made again."""
        reported = (ref for ref in self._processes.refs_reported if ref.argument_uses and _is_remade(ref))
        return grouped((ref.holder_id, ref.ref) for ref in reported)

    def was_lost(self, task_id: str) -> bool:
        """Whether a task runs again because a value that it had made was lost."""
        return any(map(_is_remade, self.reports_of.get(f"{task_id}01000000", ())))

    def _is_awaited(self, argument: Ref) -> bool:
        """Whether it is an argument whose value the worker that reports it may await."""
        if not argument.argument_uses or argument.ref.startswith(ACTOR_HANDLE):
            return False
        is_borrowed = argument.state is None and argument.size_bytes < 0
        return is_borrowed or not self.has_value(argument.ref)

    @cached_property
    def owner_of(self) -> dict[str, str]:
        """The worker that owns a ref, as known by processes that wait for it and whose core worker answered."""
        states = self._processes.worker_samples.items()
        answered = (worker_id for worker_id, state in states if state.running_task_ids is not None)
        return {ref: owner for ref, owner in self._owners(answered) if owner}

    @cached_property
    def without_owner(self) -> set[str]:
        """The awaited refs that name no owner."""
        return {ref for ref, owner in self._owners(self._processes.processes) if not owner}

    def _owners(self, workers: Iterable[str]) -> Iterator[tuple[str, str]]:
        calls = (call for worker_id in workers for call in self._processes.calls_in(worker_id))
        return (pair for call in calls for pair in zip(call.refs, call.owners, strict=False))

    @cached_property
    def awaited_tasks(self) -> set[str]:
        """The tasks that produce awaited refs without a value."""
        calls = (call for worker_id in self._processes.processes for call in self._processes.calls_in(worker_id))
        return {producer_task_id(ref) for call in calls for ref in call.refs if not self.has_value(ref)}


def is_returned(ref: str) -> bool:
    """Whether a ref is a return value of its task; for a ref that it creates itself, the task may wait itself."""
    return _index(ref) < FIRST_PUT


def _index(ref: str) -> int:
    try:
        return int.from_bytes(bytes.fromhex(ref[48:]), "little")
    except ValueError:  # in a malformed file
        return 0


def _is_remade(ref: Ref) -> bool:
    """Whether a lost value is made again: its owner reports that its task is at a further attempt.

    Only for a task's first ref: the items of a generator have values while its task runs (seen on Ray 2.60).
    """
    return ref.size_bytes >= 0 and ref.attempt > 0 and ref.state not in (None, *ENDED) and ref.ref.endswith("01000000")
