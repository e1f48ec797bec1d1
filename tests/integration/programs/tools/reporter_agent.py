"""A stand-in for the agent of a complete installation of Ray: reporter_agent.py GCS NODE_ID

Serves ``ReporterService.GetTraceback`` with Ray's own code, which runs py-spy, and registers its port with the GCS as
Ray's agent does. Prints ``serving`` and continues until it is killed.
"""

import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc, reporter_pb2, reporter_pb2_grpc
from ray.dashboard.modules.reporter.profile_manager import CpuProfilingManager

from dstack.probes.connection.connect import connect, open_channel


class Reporter(reporter_pb2_grpc.ReporterServiceServicer):  # type: ignore[misc]  # Ray's stubs have no types
    def __init__(self, directory: str) -> None:
        self._profiler = CpuProfilingManager(directory)

    def GetTraceback(self, request: Any, context: Any) -> Any:
        import asyncio

        success, output = asyncio.run(self._profiler.trace_dump(request.pid))
        return reporter_pb2.GetTracebackReply(output=output, success=success)


def main() -> None:
    cluster, node_id = connect(sys.argv[1]), sys.argv[2]
    server = grpc.server(ThreadPoolExecutor(4))
    with tempfile.TemporaryDirectory() as directory:
        reporter_pb2_grpc.add_ReporterServiceServicer_to_server(Reporter(directory), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with open_channel(cluster.address) as channel:
            stub = gcs_service_pb2_grpc.InternalKVGcsServiceStub(channel)
            request = gcs_service_pb2.InternalKVPutRequest(
                key=f"DASHBOARD_AGENT_ADDR_NODE_ID_PREFIX:{node_id}".encode(),
                value=json.dumps(["127.0.0.1", -1, port]).encode(),
                namespace=b"dashboard",
                overwrite=True,
            )
            stub.InternalKVPut(request, metadata=cluster.metadata)
        print("serving", flush=True)
        server.wait_for_termination()


if __name__ == "__main__":
    main()
