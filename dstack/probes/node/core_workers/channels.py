"""gRPC channels to core workers, kept between requests, and what they need: modules, which a node may lack, and TLS."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dstack.probes.node.wire import CoreWorker

CERTIFICATES = ("RAY_TLS_CA_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_SERVER_CERT")
"""Ray's TLS settings, from where Ray reads them; as in Ray 2.46 and 2.60."""
KEPT_S = 60.0
"""How long an unused channel is kept; then its worker has left, or nothing asks it."""
CHANNEL_OPTIONS = (("grpc.max_receive_message_length", 512 << 20), ("grpc.enable_http_proxy", 0))
"""Messages of any size that Ray may send, and no proxy: as Ray's own channels."""
OWN_CONNECTIONS = (("grpc.use_local_subchannel_pool", 1),)
"""Otherwise a new channel shares the broken connection of the channel it replaces, and its pause before a retry."""


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


def tls_pems() -> tuple[bytes, bytes, bytes] | None:
    """The authority, key and certificate of Ray's TLS variables in PEM; None without TLS.

    Raises :class:`OSError` if a file cannot be read, and :class:`LookupError` if a variable is not set.
    """
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    authority, key, certificate = (Path(os.environ[name]).read_bytes() for name in CERTIFICATES)
    return authority, key, certificate


@dataclass
class _Kept:
    channel: Any
    used_at: float


class Channels:
    """Channels by worker and address: at most ``limit`` are kept, others are closed after use."""

    def __init__(self, grpc: Any, limit: int) -> None:
        self._grpc = grpc
        self._limit = limit
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._pems: tuple[bytes, bytes, bytes] | None = None

    def prepare(self) -> None:
        """Reads Ray's TLS settings, and closes channels that were not used for long. Raises :class:`CannotAsk`."""
        try:
            self._pems = tls_pems()
        except (OSError, LookupError) as error:
            raise CannotAsk(f"TLS is on but its certificates cannot be read there: {error}") from error
        until = time.monotonic() - KEPT_S
        for key in [key for key, kept in self._kept.items() if kept.used_at < until]:
            self._kept.pop(key).channel.close()

    def take(self, worker: CoreWorker) -> tuple[Any, bool]:
        """A channel for one call, to be given back, and whether it was kept from an earlier request."""
        kept = self._kept.pop(_key(worker), None)
        return (kept.channel, True) if kept else (self._open(address_of(worker)), False)

    def give_back(self, worker: CoreWorker, channel: Any, *, is_good: bool) -> None:
        """Keeps a channel that works if there is room, and closes others."""
        if is_good and len(self._kept) < self._limit:
            self._kept[_key(worker)] = _Kept(channel, time.monotonic())
        else:
            channel.close()

    def close(self) -> None:
        """Closes all kept channels."""
        for kept in self._kept.values():
            kept.channel.close()
        self._kept.clear()

    def _open(self, address: str) -> Any:
        options = [*CHANNEL_OPTIONS, *OWN_CONNECTIONS]
        if self._pems is None:
            return self._grpc.insecure_channel(address, options=options)
        credentials = self._grpc.ssl_channel_credentials(*self._pems)
        return self._grpc.secure_channel(address, credentials, options=options)


def address_of(worker: CoreWorker) -> str:
    """``HOST:PORT``, or ``[HOST]:PORT`` where the host is an IPv6 address."""
    host = worker["ip"]
    return f"[{host}]:{worker['port']}" if ":" in host else f"{host}:{worker['port']}"


def _key(worker: CoreWorker) -> tuple[str, str]:
    return worker["worker_id"], address_of(worker)
