"""Where workers wait in Ray Train."""

from __future__ import annotations

from dstack.observed.call_site import BOTH_RAYS, Site, caller

COLLECTIVE = "/ray/train/v2/_internal/execution/collective_impl.py"

SITES = (
    Site(
        "ray.train.report",
        "ray.train.report",
        (
            caller("/ray/train/_internal/session.py", "report", BOTH_RAYS),
            caller("/ray/train/v2/_internal/execution/context.py", "report", BOTH_RAYS),
        ),
        is_meeting=True,
    ),
    Site(
        "ray.train.collective.barrier", "barrier of ray.train.collective", (caller(COLLECTIVE, "barrier", "Ray 2.60"),)
    ),
    Site(
        "ray.train.collective.broadcast_from_rank_zero",
        "broadcast of ray.train.collective",
        (caller(COLLECTIVE, "broadcast_from_rank_zero", "Ray 2.60"),),
    ),
)
MEETING = Site("ray.train.meeting", "meeting of the ranks of ray.train", library="ray.train")
"""In an actor of Train, a coroutine for each rank waits for the others; a call is named by the operation."""
HELPERS = (("/ray/train/_internal/session.py", "get_next", "training_thread"),)
"""Methods that wait for a thread: file, function and the attribute with its Thread object; Ray 2.46 and 2.60."""
