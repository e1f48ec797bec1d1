"""gRPC calls in a new process."""

import subprocess
import sys

PROGRAM = """
import socket, threading
from ray.core.generated import gcs_service_pb2
from dstack.probes.connection.rpc import UnaryCall, call_all, gcs_service

with socket.socket() as bound:  # a port without a listener
    bound.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{bound.getsockname()[1]}"
    call = UnaryCall(address, gcs_service("NodeInfo"), "CheckAlive", gcs_service_pb2.CheckAliveRequest, 5.0)
    thread = threading.Thread(target=lambda: print(call_all([call], ())))
    thread.start()
    thread.join()
"""


def test_the_first_call_may_come_from_any_thread() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)

    assert "nothing answers at 127.0.0.1:" in done.stdout, done.stderr
