"""Where requests wait in Ray Serve."""

from __future__ import annotations

from dstack.observed.call_site import BOTH_RAYS, Place, Site, caller

PRIVATE = "/ray/serve/_private/"
HANDLE = "/ray/serve/handle.py"
REPLICA_FILE, BATCHES_FILE = f"{PRIVATE}replica.py", "/ray/serve/batching.py"
MESSAGES_FILE, MESSAGES = f"{PRIVATE}http_util.py", "fetch_messages_from_queue"
"""Where a replica of Serve awaits a generator of the user's, or the messages of an HTTP response; Ray 2.46 and 2.60."""
CHOOSING = {
    "_choose_replica_for_request": f"{PRIVATE}request_router/request_router.py",
    "choose_replica_for_request": f"{PRIVATE}replica_scheduler/pow_2_scheduler.py",
}
"""The functions in which a router's request waits for a replica, with their files."""

FREE_REPLICA = Site(
    "ray.serve.free_replica",
    "Serve's wait for a free replica",
    (
        Place(CHOOSING["_choose_replica_for_request"], "_choose_replica_for_request", "coroutine", "Ray 2.60"),
        Place(CHOOSING["choose_replica_for_request"], "choose_replica_for_request", "coroutine", "2.46, not run"),
    ),
)
"""Coroutines that name the wait for a future whose source is unknown."""

SITES = (
    FREE_REPLICA,
    Site(
        "ray.serve.DeploymentResponse.result",
        "DeploymentResponse.result",
        (caller(HANDLE, "result", BOTH_RAYS),),
    ),
    Site(
        "ray.serve.DeploymentResponseGenerator.next",
        "next of a DeploymentResponseGenerator",
        (caller(HANDLE, "__next__", BOTH_RAYS),),
    ),
    Site(
        "ray.serve.start",
        "start of a Serve application",
        (Place(f"{PRIVATE}client.py", "_wait_for_application_running", "leaf", BOTH_RAYS, every_s=1.0),),
        polls_actor="ray.serve.controller",
    ),
)
