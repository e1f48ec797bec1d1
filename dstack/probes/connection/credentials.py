"""The token and certificates that a cluster may ask for, read from where Ray reads them, without loading Ray."""

from __future__ import annotations

import os
from pathlib import Path

import grpc

from dstack.errors import ClusterError
from dstack.probes.node.core_workers.tls import tls_pems

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
