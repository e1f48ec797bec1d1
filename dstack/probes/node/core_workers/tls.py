"""Ray's TLS settings, from where Ray reads them. As in Ray 2.46 and 2.60."""

from __future__ import annotations

import os
from pathlib import Path

CERTIFICATES = ("RAY_TLS_CA_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_SERVER_CERT")


def tls_pems() -> tuple[bytes, bytes, bytes] | None:
    """The authority, key and certificate of Ray's TLS variables in PEM; None without TLS.

    Raises :class:`OSError` if a file cannot be read, and :class:`LookupError` if a variable is not set.
    """
    if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        return None
    authority, key, certificate = (Path(os.environ[name]).read_bytes() for name in CERTIFICATES)
    return authority, key, certificate
