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
    by_labels = ("hangs/label_of_no_node", "hangs/task_label_of_no_node", "look_alikes/label_by_fallback")
    UNSUITABLE |= dict.fromkeys(by_labels, "this version of Ray does not choose nodes by labels")
if tuple(map(int, ray.__version__.split(".")[:2])) < (2, 60):
    reason = "this version of Ray has no backpressure for async generators"
    UNSUITABLE |= dict.fromkeys(("hangs/async_backpressure", "look_alikes/async_stream_slow_consumer"), reason)
if HAS_UVLOOP:
    UNSUITABLE |= dict.fromkeys(MAY_HEAR, "on uvloop a message from outside may end the wait: it has a test of its own")
if sys.version_info < (3, 11):
    UNSUITABLE["look_alikes/cancelled_call_goes_on"] = "CPython 3.10 does not count the cancellations of a task"

QUICK = (
    "gpu_pipeline",
    "hangs/across_two_jobs",
    "hangs/actor_in_two_graphs",
    "hangs/async_backpressure",
    "hangs/child_output_unread",
    "hangs/engine_loop_raised",
    "hangs/exit_behind_thread",
    "hangs/gate_without_slot",
    "hangs/label_of_no_node",
    "hangs/lock_held_at_fork",
    "hangs/message_queue_lost_message",
    "hangs/request_to_child_server",
    "hangs/request_to_stuck_server",
    "hangs/sync_get_in_async_method",
    "look_alikes/across_jobs",
    "look_alikes/cancelled_call_goes_on",
    "look_alikes/get_before_fork",
    "look_alikes/gil_held_in_c",
    "look_alikes/graph_slow_stage",
    "look_alikes/main_awaits_file_watcher",
    "look_alikes/timer_ends_wait",
    "nested_get_one_cpu",
    "polling",
    "ring_of_five",
    "slow_actor_queue",
    "two_actors",
)
"""Simple programs, and one for each way of reading that no other quick test on a cluster covers, for `make test`.

Of every program a unit test checks the verdict and the report on its recorded snapshot.
"""

TIMES = 10
"""Number of checks of a look-alike after it got its expected verdict."""

PROGRAMS = [name for name in NAMES if not {"libraries", "case_studies"} & set(name.split("/"))]
"""Libraries and case studies have tests of their own."""


def needs(name: str) -> str | None:
    return expected_of(EXAMPLES / f"{name}.py").needs


LEAVES_PINS = "hangs/argument_beside_own"
"""After its end, Ray keeps its arguments pinned (2.60): it is the last one on its cluster."""

PROGRAMS.sort(key=lambda name: (needs(name) or "", name == LEAVES_PINS))


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
    [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.exhaustive]) for name in PROGRAMS],
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
