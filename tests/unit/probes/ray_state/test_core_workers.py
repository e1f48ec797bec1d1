"""Core workers that are asked from this host."""

import time
from concurrent import futures

import grpc
from ray.core.generated import core_worker_pb2_grpc

from dstack.model.snapshot import Worker
from dstack.observed.node import CoreWorkerReply, Ref
from dstack.probes.ray_state.core_workers import ask_core_workers, questions, relevant_refs
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


def test_refs_of_running_tasks_are_relevant_to_their_holders_only() -> None:
    """A watchdog can cancel the task with such a ref, though no wait needs it."""
    running, ended = "ab" * 24, "cd" * 24
    held = Ref(ref=f"{running}01000000", holder_id="driver", local_uses=1)
    others = (
        Ref(ref=f"{ended}01000000", holder_id="driver", local_uses=1),
        Ref(ref=f"{running}02000000", holder_id="driver", local_uses=0),
        Ref(ref=f"{running}03000000", holder_id="driver", local_uses=1, size_bytes=8),
        Ref(ref=f"{running}01e1f505", holder_id="driver", local_uses=1),  # of ray.put
    )
    driver = CoreWorkerReply(worker_id="driver", refs=(held, *others))
    executor = CoreWorkerReply(worker_id="executor", running_task_ids=(running,))

    assert relevant_refs([driver, executor], awaited=set()) == [held]
