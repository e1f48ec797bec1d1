"""Environment variables by which the clusters that a program starts behave otherwise; Ray's own, of no public API.

Ray's release binaries understand ``RAY_testing_asio_delay_us``, a list of ``NAME=LEAST:MOST``: what its event loops do
under that name begins so many microseconds later. If the bounds differ, the delay is drawn at random in C++, without a
seed. ``RAY_OVERRIDE_RESOURCES``, as JSON, replaces the amounts that ``ray.init`` is called with, CPUs included. All
variables here were seen on Ray 2.46 to 2.60.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

DELAYS = "RAY_testing_asio_delay_us"
RESOURCES = "RAY_OVERRIDE_RESOURCES"
REPORT_INTERVAL_MS = "RAY_task_events_report_interval_ms"
"""How often processes report task events, by default 1000."""


class DelayedMethod(NamedTuple):
    """What a delay of Ray's ``names`` makes late; one name is enough, another Ray may have another one."""

    late: str
    names: tuple[str, ...]


DELAYED_METHODS: Mapping[str, DelayedMethod] = {
    "PushTask": DelayedMethod("calls", ("CoreWorkerService.grpc_server.PushTask",)),
    "TaskReply": DelayedMethod("results", ("CoreWorkerService.grpc_client.PushTask",)),
    "RequestWorkerLease": DelayedMethod("starts of tasks", ("NodeManagerService.grpc_server.RequestWorkerLease",)),
    "ReturnWorkerLease": DelayedMethod(
        "the reuse of workers",
        ("NodeManagerService.grpc_server.ReturnWorkerLease", "NodeManagerService.grpc_server.ReturnWorker"),
    ),
    "CreateActor": DelayedMethod("new actors", ("ActorInfoGcsService.grpc_server.CreateActor",)),
    "GetObjectStatus": DelayedMethod("values of other owners", ("CoreWorkerService.grpc_server.GetObjectStatus",)),
    "ReportGeneratorItemReturns": DelayedMethod(
        "items of streams", ("CoreWorkerService.grpc_server.ReportGeneratorItemReturns",)
    ),
    "CreatePlacementGroup": DelayedMethod(
        "placement groups", ("PlacementGroupInfoGcsService.grpc_server.CreatePlacementGroup",)
    ),
}
"""Each was measured to delay what it says on 2.60. The binaries of 2.46 have the same names, and ``ReturnWorker``."""
