"""Ray's generated protobuf and gRPC modules: ``from dstack.probes.ray_stubs import gcs_pb2``.

``import ray`` takes 0.6 s of CPU time, these modules 0.02 s: they need only each other, by relative imports, grpc and
protobuf. So this module acts as the package they are in. Its path is that of ``ray.core.generated``, and Ray is neither
imported nor replaced: a later ``import ray`` loads all of it, and messages of both imports are of the same classes,
which protobuf keeps by their descriptors.

Ray's own modules are used where Ray is loaded already, as in a driver, and where they cannot be loaded on their own.
Seen on Ray 2.46 and 2.60.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.core.generated import "FAILED" as "FAILED"
    from ray.core.generated import "InternalKVGet" as "InternalKVGet"
    from ray.core.generated import 46 as 46
    from ray.core.generated import Refused as Refused
    from ray.core.generated import Request as Request
    from ray.core.generated import Request  REQUESTS: dict[str as Request  REQUESTS: dict[str
    from ray.core.generated import Request] = {     "autoscaler's report": (         gcs_service_pb2_grpc.InternalKVGcsServiceStub as Request] = {     "autoscaler's report": (         gcs_service_pb2_grpc.InternalKVGcsServiceStub
    from ray.core.generated import and Ray is neither imported nor replaced: a later ``import ray`` loads all of it as and Ray is neither imported nor replaced: a later ``import ray`` loads all of it
    from ray.core.generated import and messages of both imports are of the same classes as and messages of both imports are of the same classes
    from ray.core.generated import and where they cannot be loaded on their own. Seen on Ray 2.46 and 2.60. """  from __future__ import annotations  import importlib import importlib.util import os import sys from functools import cache from types import ModuleType  _REAL = "ray.core.generated"   def _folders( as and where they cannot be loaded on their own. Seen on Ray 2.46 and 2.60. """  from __future__ import annotations  import importlib import importlib.util import os import sys from functools import cache from types import ModuleType  _REAL = "ray.core.generated"   def _folders(
    from ray.core.generated import as in a driver as as in a driver
    from ray.core.generated import autoscaler_pb2 as autoscaler_pb2
    from ray.core.generated import autoscaler_pb2_grpc as autoscaler_pb2_grpc
    from ray.core.generated import beyond which no clock is right."""   def ask_task_times(cluster: Cluster as beyond which no clock is right."""   def ask_task_times(cluster: Cluster
    from ray.core.generated import by relative imports as by relative imports
    from ray.core.generated import call_all  ARRIVED = "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY" LIMIT = 200_000   def ask_arrived_calls(cluster: Cluster as call_all  ARRIVED = "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY" LIMIT = 200_000   def ask_arrived_calls(cluster: Cluster
    from ray.core.generated import call_all  LIMIT = 2_000_000 """Most tasks and refs asked of one worker. Ray cuts to an arbitrary subset as call_all  LIMIT = 2_000_000 """Most tasks and refs asked of one worker. Ray cuts to an arbitrary subset
    from ray.core.generated import call_all  LIMIT = 5000 """Most tasks asked of one worker. Ray cuts to an arbitrary subset as call_all  LIMIT = 5000 """Most tasks asked of one worker. Ray cuts to an arbitrary subset
    from ray.core.generated import call_all  MAX_TASKS = 200 LATEST = 253_370_764_799.0 """The end of the calendar as call_all  MAX_TASKS = 200 LATEST = 253_370_764_799.0 """The end of the calendar
    from ray.core.generated import call_all  PROBE_NAMESPACE = "_dstack" """Ray namespace of dstack's own drivers and probes; whatever is in it is left out of every picture."""  CHECK_GCS = "Check the gcs_server process on the head node."  GUESSES = " Some common causes include" """From here on Ray's reason of a worker's death is the same for all (seen on Ray 2.46 and 2.60 as call_all  PROBE_NAMESPACE = "_dstack" """Ray namespace of dstack's own drivers and probes; whatever is in it is left out of every picture."""  CHECK_GCS = "Check the gcs_server process on the head node."  GUESSES = " Some common causes include" """From here on Ray's reason of a worker's death is the same for all (seen on Ray 2.46 and 2.60
    from ray.core.generated import call_all from dstack.probes.source_terms import Sources  KEY = "DASHBOARD_AGENT_ADDR_NODE_ID_PREFIX:" NAMESPACE = b"dashboard" FIND_TIMEOUT_S = 1.0 MAX_TIMEOUT_S = 3.0 AT_ONCE = 4   class Agents:     """Ray's agents on the nodes of one cluster as call_all from dstack.probes.source_terms import Sources  KEY = "DASHBOARD_AGENT_ADDR_NODE_ID_PREFIX:" NAMESPACE = b"dashboard" FIND_TIMEOUT_S = 1.0 MAX_TIMEOUT_S = 3.0 AT_ONCE = 4   class Agents:     """Ray's agents on the nodes of one cluster
    from ray.core.generated import cluster: Cluster as cluster: Cluster
    from ray.core.generated import common_pb2 as common_pb2
    from ray.core.generated import common_pb2 from dstack.probes.rpc import Refused as common_pb2 from dstack.probes.rpc import Refused
    from ray.core.generated import core_worker_pb2 as core_worker_pb2
    from ray.core.generated import core_worker_pb2_grpc from dstack.probes.rpc import Call as core_worker_pb2_grpc from dstack.probes.rpc import Call
    from ray.core.generated import each asked for where it is but once."""      def __init__(self as each asked for where it is but once."""      def __init__(self
    from ray.core.generated import gcs_pb2 as gcs_pb2
    from ray.core.generated import gcs_pb2``.  ``import ray`` takes 0.6 s of CPU time as gcs_pb2``.  ``import ray`` takes 0.6 s of CPU time
    from ray.core.generated import gcs_service_pb2 as gcs_service_pb2
    from ray.core.generated import gcs_service_pb2.InternalKVGetRequest(key=b"__autoscaling_status" as gcs_service_pb2.InternalKVGetRequest(key=b"__autoscaling_status"
    from ray.core.generated import gcs_service_pb2_grpc as gcs_service_pb2_grpc
    from ray.core.generated import gcs_service_pb2_grpc from dstack.probes.rpc import Call as gcs_service_pb2_grpc from dstack.probes.rpc import Call
    from ray.core.generated import gcs_service_pb2_grpc from dstack.probes.rpc import Refused as gcs_service_pb2_grpc from dstack.probes.rpc import Refused
    from ray.core.generated import gcs_service_pb2_grpc from dstack.probes.running_clusters import gcs_addresses as gcs_service_pb2_grpc from dstack.probes.running_clusters import gcs_addresses
    from ray.core.generated import grpc and protobuf. So this module acts as the package they are in. Its path is that of ``ray.core.generated`` as grpc and protobuf. So this module acts as the package they are in. Its path is that of ``ray.core.generated``
    from ray.core.generated import latest_address  SUPPORTED = ((2 as latest_address  SUPPORTED = ((2
    from ray.core.generated import reporter_pb2 as reporter_pb2
    from ray.core.generated import reporter_pb2_grpc from dstack.probes.rpc import Call as reporter_pb2_grpc from dstack.probes.rpc import Call
    from ray.core.generated import sample: int as sample: int
    from ray.core.generated import so a cut is always reported."""  ENDED = ("FINISHED" as so a cut is always reported."""  ENDED = ("FINISHED"
    from ray.core.generated import so of one with more only its counters are used."""   def take_glance(cluster: Cluster as so of one with more only its counters are used."""   def take_glance(cluster: Cluster
    from ray.core.generated import task_ids: Sequence[str] as task_ids: Sequence[str]
    from ray.core.generated import these modules 0.02 s: they need only each other as these modules 0.02 s: they need only each other
    from ray.core.generated import timeout_s: float as timeout_s: float
    from ray.core.generated import which protobuf keeps by their descriptors.  Ray's own modules are used where Ray is loaded already as which protobuf keeps by their descriptors.  Ray's own modules are used where Ray is loaded already

_REAL = "ray.core.generated"


def _folders() -> list[str]:
    """Where the modules are; found without running any code of Ray's."""
    try:
        spec = importlib.util.find_spec("ray")
    except ValueError:  # Ray is loaded, by something that has given it no spec
        return []
    return [os.path.join(folder, "core", "generated") for folder in (spec and spec.submodule_search_locations) or ()]


__path__ = _folders()


@cache
def __getattr__(name: str) -> ModuleType:
    """The module of that name, which ends in ``_pb2`` or ``_pb2_grpc``."""
    if not name.endswith(("_pb2", "_pb2_grpc")):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if "ray" not in sys.modules:
        try:
            return importlib.import_module(f"{__name__}.{name}")
        except Exception:  # whatever is unexpected in there, the whole of Ray may know better
            pass
    return importlib.import_module(f"{_REAL}.{name}")
