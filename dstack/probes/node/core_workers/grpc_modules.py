"""Loads grpc and Ray's generated modules, which a node may lack."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

RAYS_OWN = "ray.core.generated"


class CannotAsk(Exception):
    """No core worker can be asked from here; the text is the reason, one sentence."""


@dataclass(frozen=True)
class GrpcModules:
    """grpc, and Ray's generated modules that a request to a core worker needs."""

    grpc: Any
    common: Any
    core_worker: Any
    service: Any


def load_modules(stubs: Any = None) -> GrpcModules:
    """The modules; ``stubs`` has the generated ones as attributes, by default they are those of the Ray that runs here.

    Raises :class:`CannotAsk`: ``pip install ray`` brings no grpc, and a job may bring a protobuf that Ray's modules
    reject.
    """
    try:
        grpc = importlib.import_module("grpc")
        common, core_worker, service = (
            getattr(stubs, name) if stubs is not None else importlib.import_module(f"{RAYS_OWN}.{name}")
            for name in ("common_pb2", "core_worker_pb2", "core_worker_pb2_grpc")
        )
    except ModuleNotFoundError as error:
        raise CannotAsk(f"the Python module {error.name} is not installed there") from error
    except Exception as error:  # generated modules raise errors of protobuf, of several types
        raise CannotAsk(f"Ray's gRPC modules cannot be imported there: {type(error).__name__}: {error}") from error
    return GrpcModules(grpc, common, core_worker, service)
