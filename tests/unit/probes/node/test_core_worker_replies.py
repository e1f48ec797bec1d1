"""The reply of a core worker as an observed value."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from ray.core.generated import common_pb2, core_worker_pb2

from dstack.observed.node import CoreWorkerReply, Ref, Task
from dstack.probes.connection import ray_stubs
from dstack.probes.node.core_worker_calls import load_modules
from dstack.probes.node.core_worker_replies import group_asked_for, observed
from tests.unit.support.core_worker_servers import JOB, NIL_JOB, QUESTIONS

GROUP = "30135c36f073ea1c1d0e6658967d01000000"
WORKER, TASK = "ab" * 28, b"t" * 24


@pytest.mark.parametrize("resources", [[f"CPU_group_{GROUP}"], ["GPU", f"bundle_group_12_{GROUP}"]])
def test_a_tasks_placement_group_is_in_its_resources(resources: list[str]) -> None:
    assert group_asked_for(resources) == GROUP


@pytest.mark.parametrize("resources", [[], ["CPU", "memory"], ["my_group_1"], ["CPU_group_30135c36"]])
def test_other_resources_name_no_placement_group(resources: list[str]) -> None:
    assert group_asked_for(resources) is None


def busy_reply() -> Any:
    """Two tasks, of which one has ended and one is a generator's second attempt, with a value, an argument and a ref in
    another value.
    """
    reply = core_worker_pb2.GetCoreWorkerStatsReply(tasks_total=2, running_task_ids=[b"r" * 24])
    stats = reply.core_worker_stats
    stats.worker_id = bytes.fromhex(WORKER)
    stats.job_id, stats.actor_id, stats.num_executed_tasks, stats.num_pending_tasks = (
        bytes.fromhex(JOB),
        b"\xff" * 16,
        7,
        1,
    )
    stats.used_resources["CPU"].resource_slots.add(slot=0, allocation=0.5)
    stats.used_resources["CPU"].resource_slots.add(slot=1, allocation=1.0)
    reply.owned_task_info_entries.add(task_id=b"e" * 24, scheduling_state=common_pb2.FINISHED)
    task = reply.owned_task_info_entries.add(
        task_id=TASK,
        name="produce",
        type=common_pb2.ACTOR_TASK,
        scheduling_state=common_pb2.SUBMITTED_TO_WORKER,
        job_id=bytes.fromhex(JOB),
        actor_id=b"a" * 16,
        required_resources={f"CPU_group_0_{GROUP}": 1.0},
    )
    task.runtime_env_info.serialized_runtime_env = '{"pip": ["torch"], "_ray_commit": "1"}'
    submitted = common_pb2.SUBMITTED_TO_WORKER
    first, second = TASK + b"\x01\0\0\0", TASK + b"\x02\0\0\0"
    stats.object_refs.add(object_id=first, object_size=-1, task_status=submitted, attempt_number=1)
    stats.object_refs.add(object_id=second, object_size=10, task_status=submitted, attempt_number=1, local_ref_count=2)
    stats.object_refs.add(object_id=b"o" * 28, object_size=-1, submitted_task_ref_count=3, pinned_in_memory=True)
    stats.object_refs.add(object_id=b"i" * 28, object_size=-1, contained_in_owned=[b"o" * 28])
    stats.objects_total = 4
    return reply


def test_a_reply_has_its_unfinished_tasks_and_its_refs() -> None:
    found = observed(busy_reply(), load_modules(lambda: ray_stubs), QUESTIONS)

    assert msgspec.json.decode(msgspec.json.encode(found), type=CoreWorkerReply) == found
    assert (found.worker_id, found.job_id, found.actor_id) == (WORKER, JOB, None)
    assert (found.running_task_ids, found.held, found.executed_tasks) == ((b"r".hex() * 24,), {"CPU": 1.5}, 7)
    assert found.tasks == (
        Task(
            task_id=TASK.hex(),
            owner_id=WORKER,
            name="produce",
            kind="ACTOR_TASK",
            state="SUBMITTED_TO_WORKER",
            job_id=JOB,
            actor_id=b"a".hex() * 16,
            attempt=1,
            required_resources={f"CPU_group_0_{GROUP}": 1.0},
            placement_group_id=GROUP,
            environment=("pip",),
            items=1,
        ),
    )
    first, second, other, inside = found.refs
    assert (first.size_bytes, first.state, first.attempt, first.holder_id) == (-1, "SUBMITTED_TO_WORKER", 1, WORKER)
    assert (second.size_bytes, second.local_uses) == (10, 2)
    assert other == Ref(ref=b"o".hex() * 28, holder_id=WORKER, argument_uses=3, is_contained=True)
    assert inside == Ref(ref=b"i".hex() * 28, holder_id=WORKER, is_contained=True)


def test_values_in_shared_memory_that_the_process_uses_have_their_sizes() -> None:
    reply = busy_reply()
    reply.core_worker_stats.object_refs.add(object_id=b"m" * 28, object_size=300_000, pinned_in_memory=True)

    assert observed(reply, load_modules(lambda: ray_stubs), QUESTIONS).mapped == {b"m".hex() * 28: 300_000}


def test_a_poll_gets_only_the_ids_and_states_of_tasks() -> None:
    found = observed(busy_reply(), load_modules(lambda: ray_stubs), {**QUESTIONS, "details": False})

    assert (found.tasks, found.task_states) == ((), {TASK.hex(): "SUBMITTED_TO_WORKER"})
    assert found.counters[:3] == (2, 1, 7)
    assert not found.is_cut


def test_a_worker_without_a_job_has_none() -> None:
    reply = core_worker_pb2.GetCoreWorkerStatsReply(tasks_total=1)
    reply.core_worker_stats.job_id = NIL_JOB
    found = observed(reply, load_modules(lambda: ray_stubs), QUESTIONS)

    assert (found.job_id, found.is_cut) == (None, True)


@pytest.mark.parametrize(
    ("number", "language"), [(common_pb2.PYTHON, None), (common_pb2.JAVA, "Java"), (common_pb2.CPP, "C++")]
)
def test_a_worker_names_its_language_if_that_is_not_python(number: Any, language: str | None) -> None:
    reply = core_worker_pb2.GetCoreWorkerStatsReply()
    reply.core_worker_stats.language = number

    assert observed(reply, load_modules(lambda: ray_stubs), QUESTIONS).language == language
