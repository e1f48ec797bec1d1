"""What core workers reply: their running tasks, submitted tasks and refs. Seen on Ray 2.46 and 2.60.

The probe of each node asks them (:mod:`dstack.probes.node.core_worker_calls`). This host asks only those of nodes whose
probe cannot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import islice

from dstack.model.snapshot import ACTOR_HANDLE, Worker, is_at_hand, producer_task_id
from dstack.observed.node import CoreWorkerReply, Failure, Ref
from dstack.probes.connection import ray_stubs
from dstack.probes.connection.connect import Metadata
from dstack.probes.node import wire
from dstack.probes.node.core_worker_calls import CoreWorkers
from dstack.probes.node.core_worker_replies import ENDED

LIMIT = 2_000_000
"""The most tasks and refs that one worker lists. Ray cuts to an arbitrary subset, so a cut is always reported."""


def core_workers(workers: Iterable[Worker]) -> list[wire.CoreWorker]:
    """The workers as a probe asks them."""
    return [{"worker_id": one.worker_id, "ip": one.ip, "port": one.port, "pid": one.pid} for one in workers]


def questions(
    metadata: Metadata, timeout_s: float, *, limit: int = LIMIT, details: bool = True, with_refs: bool = True
) -> wire.Questions:
    """How core workers are asked."""
    return {
        "metadata": list(metadata),
        "timeout_s": timeout_s,
        "limit": limit,
        "details": details,
        "with_refs": with_refs,
    }


def ask_core_workers(
    workers: Sequence[Worker], how: wire.Questions, deadline: float, sample: int = 1
) -> tuple[dict[str, CoreWorkerReply], list[Failure]]:
    """The replies by worker id to questions from this host, and a failure for each missing or incomplete one.

    Workers that were not reached by ``deadline``, a ``time.monotonic()``, are among the failures.
    """
    asking = CoreWorkers(lambda: ray_stubs, kept=0)
    replies = asking.ask(core_workers(workers), how, deadline)
    asking.close()
    node_of = {worker.worker_id: worker.node_id for worker in workers}
    failures = [replace(one, node_id=node_of.get(one.worker_id or ""), sample=sample) for one in replies.failures]
    return replies.found, failures


def relevant_refs(answers: Iterable[CoreWorkerReply], awaited: set[str], unread: Collection[str] = ()) -> list[Ref]:
    """The refs that waits depend on, possible missing arguments of pending tasks, and handles of actors.

    With them are the refs of running tasks in variables, as their holders can cancel these. A worker in ``unread`` may
    wait for any absent ref that it holds; one present ref represents all refs that would have to be fetched.
    """
    answers = list(answers)
    awaited = awaited | _held_by(answers, unread)
    running = {task_id for answer in answers for task_id in answer.running_task_ids}
    return [
        ref
        for answer in answers
        for ref in answer.refs
        if ref.ref in awaited
        or ref.ref.startswith(ACTOR_HANDLE)
        or _may_be_a_missing_argument(ref)
        or (_may_be_cancelled(ref) and producer_task_id(ref.ref) in running)
    ]


def _held_by(answers: Sequence[CoreWorkerReply], unread: Collection[str]) -> set[str]:
    if not unread:
        return set()
    refs = (ref for answer in answers for ref in answer.refs)
    given = {ref.ref for ref in refs if (ref.size_bytes >= 0 or ref.state in ENDED) and not ref.attempt}
    found: set[str] = set()
    for answer in answers:
        if answer.worker_id in unread:
            held = [ref for ref in answer.refs if ref.local_uses and not ref.ref.startswith(ACTOR_HANDLE)]
            to_fetch = (ref.ref for ref in held if ref.ref in given and not is_at_hand(ref))
            found.update((*(ref.ref for ref in held if ref.ref not in given), *islice(to_fetch, 1)))
    return found


def _may_be_cancelled(ref: Ref) -> bool:
    """Whether a variable holds a return value that is not known to exist; what a task puts counts from 100,000,001."""
    return bool(ref.local_uses) and ref.size_bytes < 0 and ref.ref.endswith("0000")


def _may_be_a_missing_argument(ref: Ref) -> bool:
    """Whether a submitted task takes the ref and its value is unknown here; borrowers know neither it nor its state."""
    return bool(ref.argument_uses) and ref.size_bytes < 0 and ref.state not in ENDED
