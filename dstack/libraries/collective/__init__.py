"""Where processes wait in ray.util.collective."""

from __future__ import annotations

from dstack.observed.call_site import BOTH_RAYS, NEW_RAY, Site, leaf, operations

FILE = "/ray/util/collective/collective.py"
ON_GLOO = "/ray/util/collective/collective_group/torch_gloo_collective_group.py"
LIBRARY = "ray.util.collective"

SITES = (
    *operations(
        FILE,
        """
        allgather allgather_multigpu allreduce allreduce_multigpu barrier broadcast broadcast_multigpu
        init_collective_group recv recv_multigpu reduce reduce_multigpu reducescatter reducescatter_multigpu send
        send_multigpu
        """,
        LIBRARY,
        BOTH_RAYS,
        at="caller",
    ),
    Site(
        "ray.util.collective.start",
        "start of a ray.util.collective group",
        (leaf(ON_GLOO, "_rendezvous", NEW_RAY),),
        polls=True,
    ),
)
