"""Finds a cluster's GCS, verifies it, and finds its version and token. Seen on Ray 2.46 and 2.60."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import grpc
import grpc.aio

from dstack.errors import ClusterError, UsageError
from dstack.probes.connection.hosts import join_address, split_address
from dstack.probes.connection.ray_protocol import protocol
from dstack.probes.connection.ray_stubs import gcs_service_pb2, gcs_service_pb2_grpc
from dstack.probes.node.core_worker_calls import CHANNEL_OPTIONS, tls_pems
from dstack.probes.node.ray_messages import REMEDY
from dstack.version import TESTED_RAYS, release_of

CONNECT_TIMEOUT_S = 2.0
UPGRADE_RAY = "Upgrade Ray, or use py-spy on each node: ray stack."
NAME_THE_ADDRESS = "Give its address with --address HOST:PORT or RAY_ADDRESS."

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Cluster:
    """A cluster that answered.

    ``token`` is the bearer token it asked for, None where token authentication is off. ``notes`` are sentences the
    user should see, such as which of several clusters was chosen.
    """

    address: str
    ray_version: str
    token: str | None = field(default=None, repr=False)
    notes: tuple[str, ...] = ()

    @property
    def metadata(self) -> Metadata:
        """The metadata of every gRPC call to this cluster."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()


def connect(address: str | None = None) -> Cluster:
    """The cluster at ``address``: ``HOST:PORT`` or ``[IPV6]:PORT``; ``auto`` or None for the one running here.

    Takes at most about 5 s, from a standby 15 s. Raises :class:`ClusterError` with a remedy if there is none, or it
    rejects the connection or the token, is no Ray GCS, of an unsupported version, or a standby without a leader; and
    :class:`UsageError` for an invalid address.
    """
    named = address if address not in (None, "", "auto") else os.environ.get("RAY_ADDRESS")
    resolved, notes = (named, ()) if named and named != "auto" else _find_running()
    host, port = _split(resolved)
    _require_listener(host, port)
    gcs = join_address(host, port)
    token, alive = _ask_alive(gcs)
    _require_supported(alive.ray_version)
    cluster = Cluster(gcs, str(alive.ray_version), token, notes)
    return _at_leader(cluster) if _is_standby(alive) else cluster


def open_channel(address: str) -> grpc.Channel:
    """A gRPC channel that follows Ray's TLS environment variables and takes messages of any size Ray may send."""
    return cast(grpc.Channel, _open(grpc, address))


def open_aio_channel(address: str) -> grpc.aio.Channel:
    """The same channel for asyncio."""
    return cast(grpc.aio.Channel, _open(grpc.aio, address))


def _open(module: Any, address: str) -> Any:
    options = CHANNEL_OPTIONS
    credentials = tls_credentials()
    if credentials is None:
        return module.insecure_channel(address, options=options)
    return module.secure_channel(address, credentials, options=options)


def _find_running() -> tuple[str, tuple[str, ...]]:
    """The only cluster on this machine, or the one that ``ray start`` started last."""
    running = sorted(gcs_addresses())
    if not running:
        raise ClusterError("No Ray cluster runs on this host.", NAME_THE_ADDRESS)
    if len(running) == 1:
        return running[0], ()
    latest = latest_address()
    others = ", ".join(other for other in running if other != latest)
    if latest in running:
        return latest, (f"Using {latest}, which `ray start` started last; also running on this host: {others}.",)
    raise ClusterError(f"Several Ray clusters run on this host: {', '.join(running)}.", NAME_THE_ADDRESS)


def _split(address: str) -> tuple[str, int]:
    if address.startswith("ray://"):
        remedy = "Give the address of the GCS, HOST:PORT (default port 6379)."
        raise UsageError(f"{address} is a Ray Client address, which gives no access to the GCS.", remedy)
    try:
        return split_address(address)
    except ValueError:
        remedy = "Give HOST:PORT ([HOST]:PORT for IPv6), or auto for the cluster on this host."
        raise UsageError(f"{address!r} is not a valid address.", remedy) from None


def _require_listener(host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), timeout=CONNECT_TIMEOUT_S).close()
    except socket.gaierror as error:
        raise ClusterError(f"The host name {host} cannot be resolved.", "Check --address.") from error
    except ConnectionRefusedError as error:
        raise ClusterError(
            f"Nothing listens on {join_address(host, port)}: the connection was refused.",
            "Check that the cluster runs, and that this is the port of its GCS (`ray start` prints it).",
        ) from error
    except OSError as error:
        raise ClusterError(
            f"{join_address(host, port)} did not answer within {CONNECT_TIMEOUT_S:.0f} s.",
            "Check the address, the network and the firewalls.",
        ) from error


def _ask_alive(address: str) -> tuple[str | None, Any]:
    """The token the cluster wants, None if it wants none, and the reply with its Ray version."""
    try:
        return None, _check_alive(address, ())
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.UNAUTHENTICATED:
            raise _no_answer_of_gcs(address, error) from error
    token = load_token()
    if token is None:
        raise ClusterError(f"The cluster at {address} requires a token, and none was found.", WHERE_TOKENS_ARE)
    try:
        return token, _check_alive(address, (("authorization", f"Bearer {token}"),))
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNAUTHENTICATED:
            raise ClusterError(f"The cluster at {address} rejects the token.", WHERE_TOKENS_ARE) from error
        raise _no_answer_of_gcs(address, error) from error


def _check_alive(address: str, metadata: Metadata) -> Any:
    if not protocol().has("NodeInfoGcsService", "CheckAlive"):
        raise ClusterError("The Ray beside dstack has no method CheckAlive, so no cluster can be asked.", REMEDY)
    with open_channel(address) as channel:
        stub = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        return stub.CheckAlive(gcs_service_pb2.CheckAliveRequest(), timeout=CONNECT_TIMEOUT_S, metadata=metadata)


def _is_standby(alive: Any) -> bool:
    """Whether a GCS waits to take over from another one; before Ray 2.59 there was only one, and no such field."""
    field = alive.DESCRIPTOR.fields_by_name.get("is_leader")
    return field is not None and field.has_presence and alive.HasField("is_leader") and not alive.is_leader


def _at_leader(cluster: Cluster) -> Cluster:
    """The cluster at its leader, which is expected on the host of the dashboard, at the port of this standby.

    No key of their common store has the address of the GCS (Ray 2.60, RAY_ENABLE_GCS_LEADER_ELECTION=1), and of the
    store a standby serves only the keys and the cluster's id. Raises :class:`ClusterError` if there is no leader.
    """
    with contextlib.suppress(ValueError, AttributeError, grpc.RpcError, ClusterError):
        cluster_id, dashboard = _identity(cluster.address, cluster.metadata)
        host, port = split_address(dashboard)[0], split_address(cluster.address)[1]
        _require_listener(host, port)
        leader = join_address(host, port)
        alive = _check_alive(leader, cluster.metadata)
        if not _is_standby(alive) and _identity(leader, cluster.metadata)[0] == cluster_id:
            note = f"The head at {cluster.address} is a standby; dstack reads the cluster from its leader, {leader}."
            return replace(cluster, address=leader, notes=(*cluster.notes, note))
    raise ClusterError(
        f"The head at {cluster.address} is a standby, which does not know the cluster; its leader was not found.",
        "Give the leader's address with --address HOST:PORT: on Kubernetes, that of the head's service.",
    )


def _identity(address: str, metadata: Metadata) -> tuple[bytes, str]:
    """The id of a GCS's cluster, and the address of its dashboard. Raises :class:`grpc.RpcError`."""
    id_request = gcs_service_pb2.GetClusterIdRequest()
    key_request = gcs_service_pb2.InternalKVGetRequest(namespace=b"dashboard", key=b"dashboard")
    with open_channel(address) as channel:
        nodes = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        keys = gcs_service_pb2_grpc.InternalKVGcsServiceStub(channel)
        found = nodes.GetClusterId(id_request, timeout=CONNECT_TIMEOUT_S, metadata=metadata)
        key = keys.InternalKVGet(key_request, timeout=CONNECT_TIMEOUT_S, metadata=metadata)
        return found.cluster_id, key.value.decode(errors="replace")


def _no_answer_of_gcs(address: str, error: grpc.RpcError) -> ClusterError:
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return ClusterError(
            f"{address} accepts connections but its GCS did not answer within {CONNECT_TIMEOUT_S:.0f} s.",
            "It may be stopped, overloaded, or not Ray: check the gcs_server process there.",
        )
    return ClusterError(
        f"The service at {address} does not answer as a Ray GCS ({error.code().name.lower()}).",
        "If the GCS has just ended or restarts, try again. Otherwise give the GCS's port, 6379 unless set otherwise,"
        " not that of the dashboard or of Ray Client; if the cluster uses TLS, set RAY_USE_TLS and Ray's certificate"
        " variables as on its nodes.",
    )


def _require_supported(version: str) -> None:
    """Newer versions than the tested ones are not refused: what they lack is found piece by piece."""
    release, first = release_of(version), TESTED_RAYS[0]
    if release is not None and release < first:
        oldest = ".".join(map(str, first))
        raise ClusterError(f"The cluster runs Ray {version}; dstack supports {oldest} and later.", UPGRADE_RAY)


WHERE_TOKENS_ARE = "Set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, or put the cluster's token into ~/.ray/auth_token."
K8S = "RAY_ENABLE_K8S_TOKEN_AUTH"
"""If this is set, the token may be that of a Kubernetes service account."""
WITHOUT_CERTIFICATES = (
    "RAY_USE_TLS is on, but not all of RAY_TLS_SERVER_CERT, RAY_TLS_SERVER_KEY and RAY_TLS_CA_CERT are set"
)


def load_token() -> str | None:
    """The token Ray itself would use, whatever RAY_AUTH_MODE says; from the environment or a file.

    Raises :class:`ClusterError` where RAY_AUTH_TOKEN_PATH names no file with a token. Sources and their order as in Ray
    2.60; before token authentication there were none.
    """
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        return token.strip() or None
    if path := os.environ.get("RAY_AUTH_TOKEN_PATH"):
        if token := _first_line(path):
            return token
        raise ClusterError(
            f"RAY_AUTH_TOKEN_PATH is set but its file cannot be opened or is empty: {path}.", WHERE_TOKENS_ARE
        )
    return _rays_own_token() if os.environ.get(K8S) else _first_line(os.path.expanduser("~/.ray/auth_token"))


def _first_line(path: str) -> str | None:
    try:
        return Path(path).read_bytes().partition(b"\n")[0].decode(errors="replace").strip() or None
    except OSError:
        return None


def _rays_own_token() -> str | None:
    try:
        from ray._raylet import AuthenticationTokenLoader
    except ImportError:  # Ray before token authentication
        return None
    loader = AuthenticationTokenLoader.instance()
    if not loader.has_token(ignore_auth_mode=True):
        return None
    header = loader.get_token_for_http_header(ignore_auth_mode=True)
    value = next((text for key, text in header.items() if key.lower() == "authorization"), "")
    return str(value).removeprefix("Bearer ") or None


def tls_credentials() -> grpc.ChannelCredentials | None:
    """The files of Ray's TLS variables; None without TLS. Raises :class:`ClusterError`. As in Ray 2.46 and 2.60."""
    try:
        pems = tls_pems()
    except (OSError, LookupError) as error:
        reason = WITHOUT_CERTIFICATES if isinstance(error, LookupError) else error
        raise ClusterError(
            f"TLS is on but its certificates cannot be read: {reason}.",
            "Check RAY_TLS_SERVER_CERT, RAY_TLS_SERVER_KEY and RAY_TLS_CA_CERT.",
        ) from error
    return grpc.ssl_channel_credentials(*pems) if pems else None


_FLAG = "--gcs-address="


def gcs_addresses() -> set[str]:
    """The GCS addresses in the command lines of all raylets here."""
    raylets = (line for line in _command_lines() if "raylet" in os.path.basename(line[0]))
    words = (word for line in raylets for part in line for word in part.split(" "))
    found = {word.removeprefix(_FLAG).partition("=")[0] for word in words if word.startswith(_FLAG)}
    return found - {"", "None"}


def latest_address() -> str | None:
    """The GCS address that ``ray start`` noted last, also of a cluster that has ended since."""
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    with contextlib.suppress(OSError):
        return Path(folder, "ray", "ray_current_cluster").read_text().strip() or None
    return None


def _command_lines() -> Iterator[list[str]]:
    """Of all processes; one that sets its own title may have written words with spaces between them."""
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            line = Path("/proc", pid, "cmdline").read_bytes().decode(errors="replace")
            yield line.removesuffix("\0").split("\0" if line.endswith("\0") else " ")
