"""Ray's generated protobuf and gRPC modules: ``from dstack.probes.connection.ray_stubs import gcs_pb2``.

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
from typing import Any

_REAL = "ray.core.generated"


def _folders() -> list[str]:
    """The directory of the modules, found without running Ray's code."""
    try:
        spec = importlib.util.find_spec("ray")
    except ValueError:  # Ray is loaded, by something that has given it no spec
        return []
    return [os.path.join(folder, "core", "generated") for folder in (spec and spec.submodule_search_locations) or ()]


__path__ = _folders()


def __getattr__(name: str) -> Any:
    """The module of that name, which ends in ``_pb2`` or ``_pb2_grpc``."""
    if not name.endswith(("_pb2", "_pb2_grpc")):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if "ray" not in sys.modules:
        try:
            return importlib.import_module(f"{__name__}.{name}")
        except Exception:  # whatever is unexpected in there, the whole of Ray may know better
            pass
    return importlib.import_module(f"{_REAL}.{name}")
