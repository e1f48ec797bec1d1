"""Loads grpc and Ray's generated modules, which a node may lack."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class CannotAsk(Exception):
    """No core worker can be asked from here; the text is the reason, one sentence."""


@dataclass(frozen=True)
class GrpcModules:
    """grpc, and Ray's generated modules that a request to a core worker needs."""

    grpc: Any
    common: Any
    core_worker: Any
    service: Any


def load_modules(stubs: Callable[[], Any] | None = None) -> GrpcModules:
    """The modules; ``stubs`` returns an object with the generated ones, by default those of the Ray that runs here.

    Raises :class:`CannotAsk`: ``pip install ray`` brings no grpc, and a job may bring a protobuf that Ray's modules
    reject.
    """
    try:
        grpc = importlib.import_module("grpc")
        found = stubs() if stubs else _RaysOwn()
        common, core_worker, service = found.common_pb2, found.core_worker_pb2, found.core_worker_pb2_grpc
    except ModuleNotFoundError as error:
        raise CannotAsk(f"the Python module {error.name} is not installed there") from error
    except Exception as error:  # generated modules raise errors of protobuf, of several types
        raise CannotAsk(f"Ray's gRPC modules cannot be imported there: {type(error).__name__}: {error}") from error
    return GrpcModules(grpc, common, core_worker, service)


class _RaysOwn:
    """The generated modules of the Ray that runs here; a worker has some of them loaded."""

    def __getattr__(self, name: str) -> Any:
        return importlib.import_module(f"ray.core.generated.{name}")
