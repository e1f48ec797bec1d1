"""Where requests wait in Ray Serve, and its actors; seen on Ray 2.46 and 2.60."""

from __future__ import annotations

from dstack.libraries import Recogniser
from dstack.observed.call_site import BOTH_RAYS, NEW_RAY, Place, Site, caller, site

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

FREE_REPLICA = site(
    "ray.serve.free_replica",
    Place(CHOOSING["_choose_replica_for_request"], "_choose_replica_for_request", "coroutine", NEW_RAY),
    Place(CHOOSING["choose_replica_for_request"], "choose_replica_for_request", "coroutine", "2.46, not run"),
    name="Serve's wait for a free replica",
)
"""Coroutines that name the wait for a future whose source is unknown."""

SITES = (
    FREE_REPLICA,
    site("ray.serve.DeploymentResponse.result", caller(HANDLE, "result", BOTH_RAYS), name="DeploymentResponse.result"),
    site(
        "ray.serve.DeploymentResponseGenerator.next",
        caller(HANDLE, "__next__", BOTH_RAYS),
        name="next of a DeploymentResponseGenerator",
    ),
    Site(
        "ray.serve.start",
        "start of a Serve application",
        (Place(f"{PRIVATE}client.py", "_wait_for_application_running", "leaf", BOTH_RAYS, every_s=1.0),),
        polls_actor="ray.serve.controller",
    ),
)

REPLICA_NAME = r"SERVE_REPLICA::.*#(?P<replica>[^#]+)"
"""The name of a replica's actor, which ends with the id of the replica."""
REQUESTS = r"handle_request\w*"
"""The methods of a replica that execute requests; its other methods serve Serve itself."""

PARTS = (
    Recogniser(
        r"ServeReplica:(?P<app>[^:]*):(?P<deployment>.+)",
        "Serve deployment {deployment} of app {app}",
        which=", replica {replica}",
        unit="replica",
        actor_name=REPLICA_NAME,
        work=(REQUESTS, "request to"),
        upkeep=r"check_health|record_routing_stats|get_num_ongoing_requests|push_proxy_handle|is_allocated|"
        r"was_initialized|list_outbound_deployments|reserve_slot|release_slot|perform_graceful_shutdown",
    ),
    Recogniser(
        r"ServeController",
        "Serve's controller",
        actor_name=r"SERVE_CONTROLLER_ACTOR.*",
        is_machinery=True,
        id="ray.serve.controller",
    ),
    Recogniser(r"ProxyActor", "Serve's proxy", actor_name=r"SERVE_PROXY_ACTOR.*", is_machinery=True),
)
ENDLESS = (caller("/ray/serve/_private/client.py", "_wait_for_application_running", NEW_RAY),)
"""Where ``serve.run`` polls, without a timeout, until the application runs or has failed."""
IN_PROXY = "ProxyResponseGenerator."
"""The names of the functions in which Serve's proxy waits for a response begin so; Ray 2.60."""
