"""The actors of Ray Serve; seen on Ray 2.46 and 2.60."""

from __future__ import annotations

from dstack.libraries.recogniser import Recogniser
from dstack.observed.call_site import caller

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
ENDLESS = (caller("/ray/serve/_private/client.py", "_wait_for_application_running", "Ray 2.60"),)
"""Where ``serve.run`` polls, without a timeout, until the application runs or has failed."""
IN_PROXY = "ProxyResponseGenerator."
"""The names of the functions in which Serve's proxy waits for a response begin so; Ray 2.60."""
