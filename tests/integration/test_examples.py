"""Every example gets the verdict of its docstring on real Ray, and no earlier snapshot gives a false alarm."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any

import psutil
import pytest
import ray
from ray.core.generated import gcs_pb2

from tests.clusters.dstack_command import Json
from tests.clusters.shared_cluster import SETTLED_S, SharedCluster, shared_cluster
from tests.examples.expected import ALARMS, expected_of
from tests.examples.recorded import NAMES
from tests.paths import EXAMPLES
from tests.processes import carrying, is_rays, wait_until, woken_all_the_time

pytestmark = pytest.mark.ray

CLUSTERS: dict[str, dict[str, Any]] = {
    "two nodes": {"nodes": 2, "num_cpus": 1},
    "small object store": {"nodes": 1, "num_cpus": 4, "object_store_memory": 200 * 2**20},
    "nodes that come and go": {"nodes": 1, "num_cpus": 1, "nodes_settle_s": 600.0},
}
"""Clusters for programs that the shared one does not suit, by the ``Needs`` of their docstring."""

PERIODICALLY_WAKING = (
    "hangs/backpressure",
    "hangs/barrier_one_missing",
    "hangs/rlock_and_callback",
    "hangs/sync_get_in_async_method",
)
"""One for each kind of wait: in C++, in a queue, in a lock, on an event loop."""

HAS_UVLOOP = find_spec("uvloop") is not None
MAY_HEAR = {"hangs/gate_without_slot": "stalled", "look_alikes/event_set_by_sleeping_task": "running"}
"""Programs and their verdicts on uvloop, where it is unknown whether a loop watches sockets."""
UNSUITABLE: dict[str, str] = {}
"""Programs without the expected verdict on these versions of Ray and Python, with the reason."""
if "label_selector" not in gcs_pb2.ActorTableData.DESCRIPTOR.fields_by_name:
    UNSUITABLE["hangs/label_of_no_node"] = "this version of Ray does not choose nodes by labels"
if tuple(map(int, ray.__version__.split(".")[:2])) < (2, 60):
    reason = "this version of Ray has no backpressure for async generators"
    UNSUITABLE |= dict.fromkeys(("hangs/async_backpressure", "look_alikes/async_stream_slow_consumer"), reason)
if HAS_UVLOOP:
    UNSUITABLE |= dict.fromkeys(MAY_HEAR, "on uvloop a message from outside may end the wait: it has a test of its own")
if sys.version_info < (3, 11):
    UNSUITABLE["look_alikes/cancelled_call_goes_on"] = "CPython 3.10 does not count the cancellations of a task"

VARIANTS = (
    "hangs/actors_for_life",
    "hangs/all_threads_call_home",
    "hangs/argument_beside_own",
    "hangs/argument_needs_later_call",
    "hangs/async_consumer_of_stream",
    "hangs/async_slots_full",
    "hangs/backpressure",
    "hangs/behind_unready_argument",
    "hangs/call_comes_home",
    "hangs/call_in_init",
    "hangs/concurrency_group_full",
    "hangs/consumer_calls_home",
    "hangs/driver_awaits_ring",
    "hangs/driver_pool",
    "hangs/either_calls_back",
    "hangs/either_result_is_late",
    "hangs/event_set_on_own_loop",
    "hangs/exit_behind_graph_stage",
    "hangs/file_lock_of_caller",
    "hangs/future_in_an_actor",
    "hangs/future_set_on_own_loop",
    "hangs/futures_of_own_loop",
    "hangs/gather_with_stuck_branch",
    "hangs/get_after_fork",
    "hangs/gpu_of_bundle",
    "hangs/graph_awaited_output_kept",
    "hangs/graph_execute_without_room",
    "hangs/graph_input_kept_by_stage",
    "hangs/graph_stage_calls_home",
    "hangs/join_and_callback",
    "hangs/licence_not_lent",
    "hangs/lock_and_callback",
    "hangs/locks_in_two_orders",
    "hangs/locks_of_two_actors",
    "hangs/loop_of_group_blocked",
    "hangs/main_awaits_own_thread",
    "hangs/main_awaits_polling_thread",
    "hangs/nested_gpu_tasks",
    "hangs/nested_pool",
    "hangs/polls_for_dead_actor",
    "hangs/polls_for_late_actor",
    "hangs/polls_status_of_starved_task",
    "hangs/pool_asks_own_loop",
    "hangs/pool_of_forks",
    "hangs/queue_of_dead_child",
    "hangs/queues_take_cpus",
    "hangs/releases_behind_acquires",
    "hangs/removed_group_of_actor",
    "hangs/removed_placement_group",
    "hangs/restart_calls_home",
    "hangs/restart_without_room",
    "hangs/result_on_own_loop",
    "hangs/results_of_each_other",
    "hangs/rlock_and_callback",
    "hangs/second_loop_awaits_first",
    "hangs/second_placement_group",
    "hangs/spread_behind_actors",
    "hangs/strict_pack",
    "hangs/strict_spread",
    "hangs/sync_and_async_ring",
    "hangs/too_many_gpus",
    "hangs/two_of_three",
    "hangs/waits_for_infeasible_group",
    "look_alikes/actor_restarting",
    "look_alikes/actors_start",
    "look_alikes/actors_without_cpus",
    "look_alikes/always_restarting",
    "look_alikes/argument_beside_running",
    "look_alikes/async_queue_with_slow_producer",
    "look_alikes/async_request_to_slow_server",
    "look_alikes/async_stream_slow_consumer",
    "look_alikes/awaited_own_method",
    "look_alikes/behind_slow_argument",
    "look_alikes/busy_actors",
    "look_alikes/cancelled_by_timer",
    "look_alikes/child_outside_of_trial",
    "look_alikes/child_with_watchdog",
    "look_alikes/condition_notified_later",
    "look_alikes/consumer_without_work",
    "look_alikes/coroutine_asked_from_thread",
    "look_alikes/coroutine_on_other_loop",
    "look_alikes/crashing_call",
    "look_alikes/ended_by_own_watchdog",
    "look_alikes/engine_loop_started_again",
    "look_alikes/event_set_by_signal",
    "look_alikes/event_set_by_sleeping_coroutine",
    "look_alikes/event_set_by_sleeping_task",
    "look_alikes/event_set_by_slow_thread",
    "look_alikes/exit_behind_working_thread",
    "look_alikes/failed_results_kept",
    "look_alikes/file_lock_of_working_holder",
    "look_alikes/first_of_two_awaited",
    "look_alikes/flooded_actor",
    "look_alikes/free_concurrency_group",
    "look_alikes/future_set_by_slow_thread",
    "look_alikes/future_still_computing",
    "look_alikes/gather_with_failing_branch",
    "look_alikes/get_ends_with_an_error",
    "look_alikes/get_inside_bundle",
    "look_alikes/gil_held_without_answer",
    "look_alikes/gpu_of_mortal_actor",
    "look_alikes/gpu_waits_for_cpu",
    "look_alikes/graph_after_teardown",
    "look_alikes/graph_awaited_output_copied",
    "look_alikes/graph_executed_ahead",
    "look_alikes/graph_goes_on",
    "look_alikes/graph_output_copied",
    "look_alikes/graph_stage_calls_free_home",
    "look_alikes/group_fits_later",
    "look_alikes/http_long_poll",
    "look_alikes/join_of_working_thread",
    "look_alikes/killed_by_supervisor",
    "look_alikes/left_in_removed_group",
    "look_alikes/lock_held_by_running_thread",
    "look_alikes/lock_let_go_before_call",
    "look_alikes/lock_of_working_child",
    "look_alikes/locks_with_timeout",
    "look_alikes/makes_room_at_deadline",
    "look_alikes/message_queue_slow_answer",
    "look_alikes/nested_pool_without_cpus",
    "look_alikes/one_get_has_a_timeout",
    "look_alikes/one_thread_free",
    "look_alikes/other_branch_can_give",
    "look_alikes/output_read_slowly",
    "look_alikes/own_thread_needs_no_cpu",
    "look_alikes/polling_get",
    "look_alikes/polling_ring_in_helper",
    "look_alikes/polling_ring_of_appointments",
    "look_alikes/polling_ring_while_open",
    "look_alikes/polling_ring_within_hours",
    "look_alikes/polls_for_file",
    "look_alikes/polls_status_of_program",
    "look_alikes/pool_of_slow_gets",
    "look_alikes/pool_with_slow_work",
    "look_alikes/prompt_of_driver",
    "look_alikes/queue_of_slow_child",
    "look_alikes/queue_without_work",
    "look_alikes/refs_instead_of_gets",
    "look_alikes/releases_in_own_group",
    "look_alikes/request_to_slow_child_server",
    "look_alikes/request_to_slow_server",
    "look_alikes/retries",
    "look_alikes/ring_with_async_member",
    "look_alikes/ring_with_second_thread",
    "look_alikes/rlock_taken_twice",
    "look_alikes/second_group_answers",
    "look_alikes/shared_gpu",
    "look_alikes/sleeping_coroutines",
    "look_alikes/slow_actor_start",
    "look_alikes/slow_consumer",
    "look_alikes/slow_environment",
    "look_alikes/slow_member_of_task_group",
    "look_alikes/slow_start",
    "look_alikes/slow_stream",
    "look_alikes/slower_than_before",
    "look_alikes/sync_get_of_slow_task",
    "look_alikes/tasks_in_one_bundle",
    "look_alikes/thread_fed_by_queue",
    "look_alikes/timer_cancels_task",
    "look_alikes/too_many_tasks",
    "look_alikes/two_of_three_slow",
    "look_alikes/wait_inside_tasks",
    "look_alikes/worker_imports_slowly",
    "look_alikes/worker_starts_slowly",
)
"""Variants of other programs, and programs that other tests run, for `make test-all`."""

TIMES = 10
"""Number of checks of a look-alike after it got its expected verdict."""

PROGRAMS = [name for name in NAMES if not {"libraries", "case_studies"} & set(name.split("/"))]
"""Libraries and case studies have tests of their own."""


def needs(name: str) -> str | None:
    return expected_of(EXAMPLES / f"{name}.py").needs


PROGRAMS.sort(key=lambda name: needs(name) or "")


@pytest.fixture(scope="module")
def cluster_for(shared: SharedCluster) -> Iterator[Callable[[str | None], SharedCluster]]:
    """Return the cluster that a program needs."""
    with ExitStack() as stack:
        running: dict[str | None, SharedCluster] = {None: shared}

        def cluster(wanted: str | None) -> SharedCluster:
            if wanted is not None and wanted not in running:
                running[wanted] = stack.enter_context(shared_cluster(**CLUSTERS[wanted]))
            return running[wanted]

        yield cluster


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] if needs(name) or name in VARIANTS else [])
        for name in PROGRAMS
    ],
)
def test_a_program_gets_its_expected_verdict(name: str, cluster_for: Callable[[str | None], SharedCluster]) -> None:
    if name in UNSUITABLE:
        pytest.skip(UNSUITABLE[name])
    expected = expected_of(EXAMPLES / f"{name}.py")
    cluster = cluster_for(expected.needs)
    documents: list[Json] = []

    with cluster.running(name) as example:
        document = cluster.settled(expected, observe=documents.append)
        assert psutil.Process(example.pid).status() != psutil.STATUS_ZOMBIE, example.output()

    assert not [document for document in documents if expected.is_denied_by(document)]
    if "/" not in name and expected.verdict in ALARMS:  # examples in folders may have more findings and inferred waits
        (finding,) = document["findings"]
        assert {member["execution"] for member in finding["members"]} == expected.members
        assert all(one["evidence"] == "exact" for member in finding["members"] for one in member["waits_for"])


@pytest.mark.skipif(not HAS_UVLOOP, reason="needs uvloop: a pair of `make compatibility` has it")
@pytest.mark.parametrize(("name", "verdict"), MAY_HEAR.items())
def test_a_wait_that_a_message_may_end_is_no_deadlock_on_uvloop(
    name: str, verdict: str, cluster_for: Callable[[str | None], SharedCluster]
) -> None:
    cluster = cluster_for(None)

    with cluster.running(name):
        wait_until(
            lambda: cluster.check()["verdict"] == verdict, deadline_s=SETTLED_S, what=lambda: f"{cluster.check()}"
        )
        verdicts = [cluster.check()["verdict"] for _ in range(TIMES)]

    assert set(verdicts) == {verdict}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name.startswith("look_alikes/")])
def test_a_look_alike_is_never_called_a_hang(name: str, cluster_for: Callable[[str | None], SharedCluster]) -> None:
    if name in UNSUITABLE:
        pytest.skip(UNSUITABLE[name])
    expected = expected_of(EXAMPLES / f"{name}.py")
    cluster = cluster_for(expected.needs)

    with cluster.running(name):
        cluster.settled(expected)
        verdicts = [cluster.check()["verdict"] for _ in range(TIMES)]

    assert set(verdicts) == {"running"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PERIODICALLY_WAKING)
def test_a_program_of_periodically_waking_threads_gets_the_same_verdict(
    name: str, cluster_for: Callable[[str | None], SharedCluster]
) -> None:
    """Signals wake the threads, as a profiler does, more often than py-spy can read them on a busy host."""
    expected = expected_of(EXAMPLES / f"{name}.py")
    cluster = cluster_for(expected.needs)

    with cluster.running(name) as example:
        cluster.settled(expected)
        tag = ("RAY_TMPDIR", example.environment["RAY_TMPDIR"])
        workers = [process.pid for process in carrying(tag) if is_rays(process)]
        with woken_all_the_time(example.pid, *workers, every_s=0.03):
            cluster.settled(expected)
