"""Core workers that are asked from this host."""

import time
from concurrent import futures

import grpc
from ray.core.generated import core_worker_pb2_grpc

from dstack.model import Worker
from dstack.probes.ray_state.core_workers import ask_core_workers, questions
from tests.unit.support.core_worker_servers import CoreWorkerServer


def test_a_worker_on_ipv6_answers() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(1))
    core_worker_pb2_grpc.add_CoreWorkerServiceServicer_to_server(CoreWorkerServer(), server)
    worker = Worker(worker_id="ab" * 28, node_id="n", ip="::1", port=server.add_insecure_port("[::1]:0"), pid=1)
    gone = Worker(worker_id="cd" * 28, node_id="m", ip="::1", port=1, pid=2)
    server.start()
    try:
        answers, failures = ask_core_workers(
            [worker, gone], questions((), timeout_s=30.0), time.monotonic() + 30.0, sample=2
        )
    finally:
        server.stop(0).wait()

    assert list(answers) == [worker.worker_id]
    (failure,) = failures
    assert (failure.node_id, failure.worker_id, failure.sample) == ("m", gone.worker_id, 2)
    assert failure.cause == "unreachable"
