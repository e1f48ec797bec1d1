"""Derived values of a core worker's answer."""

from concurrent import futures
from typing import Any

import grpc
import pytest
from ray.core.generated import core_worker_pb2, core_worker_pb2_grpc

from dstack.model import Worker
from dstack.probes.node.core_workers.replies import group_asked_for
from dstack.probes.ray_state.core_workers import ask_core_workers

GROUP = "30135c36f073ea1c1d0e6658967d01000000"


@pytest.mark.parametrize("resources", [[f"CPU_group_{GROUP}"], ["GPU", f"bundle_group_12_{GROUP}"]])
def test_a_tasks_placement_group_is_in_its_resources(resources: list[str]) -> None:
    assert group_asked_for(resources) == GROUP


@pytest.mark.parametrize("resources", [[], ["CPU", "memory"], ["my_group_1"], ["CPU_group_30135c36"]])
def test_other_resources_name_no_placement_group(resources: list[str]) -> None:
    assert group_asked_for(resources) is None


class CoreWorker(core_worker_pb2_grpc.CoreWorkerServiceServicer):  # type: ignore[misc]
    """The part of a core worker that identifies the worker."""

    def GetCoreWorkerStats(self, request: Any, context: Any) -> Any:
        reply = core_worker_pb2.GetCoreWorkerStatsReply()
        reply.core_worker_stats.worker_id = request.intended_worker_id
        return reply


def test_a_worker_on_ipv6_answers() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    core_worker_pb2_grpc.add_CoreWorkerServiceServicer_to_server(CoreWorker(), server)
    worker = Worker(worker_id="ab" * 28, node_id="n", ip="::1", port=server.add_insecure_port("[::1]:0"), pid=1)
    server.start()
    try:
        answers, failures = ask_core_workers([worker], (), timeout_s=30.0)
    finally:
        server.stop(0).wait()

    assert list(answers) == [worker.worker_id]
    assert failures == []
