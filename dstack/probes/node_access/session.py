"""The connection to a cluster and the probes on its nodes, kept between snapshots."""

from __future__ import annotations

import time
from dataclasses import dataclass

from dstack.probes.connection import ray_stubs
from dstack.probes.connection.connect import Cluster, connect
from dstack.probes.node.probe import NodeProbe
from dstack.probes.node_access.remote_probes import RemoteProbes
from dstack.probes.node_access.targets import with_environment
from dstack.probes.ray_state.control_plane import Inventory

RPC_TIMEOUT_S = 3.0
AGENTS_SHARE = 0.08
"""The part of a sample's time that is reserved for Ray's agents, which read unreadable processes."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Sample number ``sample``, counted from 1, from ``began`` to ``deadline``, both of ``time.monotonic()``."""

    sample: int
    began: float
    deadline: float

    @classmethod
    def of(cls, sample: int, seconds: float) -> Budget:
        """A sample that begins now."""
        began = time.monotonic()
        return cls(sample, began, began + seconds)

    def rpc_timeout_s(self) -> float:
        """The timeout of an RPC that is sent now."""
        return max(0.1, min(RPC_TIMEOUT_S, self.deadline - time.monotonic()))

    @property
    def processes_until(self) -> float:
        """The deadline for reading processes."""
        return self.deadline - (self.deadline - self.began) * AGENTS_SHARE


class ProbeSession:
    """A session with one cluster at a time; a context manager, which ends the probes.

    A cluster that was restarted, or another one, gets new probes. ``driver`` is the module of dstack's driver on the
    cluster.
    """

    def __init__(self, driver: str | None = None) -> None:
        self._driver = driver
        self._cluster: Cluster | None = None
        self._local: NodeProbe | None = None
        self._remote: RemoteProbes | None = None
        self._nodes: set[str] = set()

    def __enter__(self) -> ProbeSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def connect(self, address: str | None) -> Cluster:
        """The verified cluster at ``address``; raises what :func:`dstack.probes.connection.connect.connect` raises."""
        cluster = connect(address)
        if cluster != self._cluster:
            self.close()
        self._cluster = cluster
        return cluster

    @property
    def has_probes(self) -> bool:
        """Whether there are probes on other nodes, which dstack's own job runs."""
        return self._remote is not None

    @property
    def local(self) -> NodeProbe:
        """Reads the nodes that are on this host."""
        if self._local is None:
            self._local = NodeProbe(lambda: ray_stubs, prepare=with_environment)
        return self._local

    def replace_local(self) -> None:
        """Leaves the current reader of this host to a reading that does not end."""
        self._local = None

    def remote(self, inventory: Inventory) -> RemoteProbes:
        """The probes on other nodes; new ones if the last ones have ended, or no node was there before."""
        assert self._cluster is not None
        alive = {node.node_id for node in inventory.nodes if node.alive}
        if self._remote is not None and (self._remote.has_ended or not alive & self._nodes):
            self.close()
        if self._remote is None:
            self._remote = RemoteProbes(self._cluster, self._driver)
        self._nodes = alive
        return self._remote

    def close(self) -> None:
        """Ends the probes on other nodes; a later request starts new ones."""
        if self._remote is not None:
            self._remote.close()
            self._remote = None
