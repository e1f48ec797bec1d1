"""Where threads and coroutines wait in compiled graphs (``ray.dag``)."""

from __future__ import annotations

from dstack.observed.call_site import BOTH_RAYS, Place, caller, leaf, site

CHANNEL_FILE = "/ray/experimental/channel/shared_memory_channel.py"
GET_FILE = "/ray/experimental/compiled_dag_ref.py"

READ = site(
    "ray.dag.channel.read",
    Place(CHANNEL_FILE, "read", "channel", BOTH_RAYS),
    Place(CHANNEL_FILE, "release_buffer", "channel", BOTH_RAYS),
    name="read of a compiled graph's channel",
)
"""Callers of ``ray.get`` on a ref that is written repeatedly: that it has a value does not end the wait."""
WRITE = site(
    "ray.dag.channel.write", leaf(CHANNEL_FILE, "write", BOTH_RAYS), name="write to a compiled graph's channel"
)
GET = site("ray.dag.CompiledDAGRef.get", caller(GET_FILE, "get", BOTH_RAYS), name="CompiledDAGRef.get")
EXECUTE = site("ray.dag.CompiledDAG.execute", name="CompiledDAG.execute")
FUTURE = site("ray.dag.CompiledDAGFuture", name="CompiledDAGFuture", timeout="none")
MONITOR_THREAD = "CompiledGraphMonitorThread"
"""The thread of a graph's driver that waits for the end of the graph's loops; Ray 2.46 and 2.60."""
OF_DRIVER = frozenset(site.id for site in (GET, EXECUTE, FUTURE))
"""Where the driver of a graph waits for a result, or for room for an input."""

SITES = (READ, WRITE, GET, EXECUTE, FUTURE)
