"""Where threads wait in Ray Data."""

from __future__ import annotations

from dstack.observed.call_site import BOTH_RAYS, Place, Site, caller

EXECUTION = "/ray/data/_internal/execution/"
STATE = f"{EXECUTION}streaming_executor_state.py"
SPLIT = "/ray/data/_internal/iterator/stream_split_iterator.py"

MEETING = Site(
    "ray.data.streaming_split",
    "the other consumers of a dataset's streaming_split",
    (Place(SPLIT, "_barrier", "leaf", BOTH_RAYS, every_s=0.1),),
)
"""In the coordinator of a dataset, a thread for each consumer polls until all have come."""

IN_EXECUTOR = Site("ray.data.executor", "Ray Data's executor", (caller(STATE, "process_completed_tasks", BOTH_RAYS),))

SITES = (
    MEETING,
    IN_EXECUTOR,
    Site(
        "ray.data.next_output",
        "Ray Data's next output",
        (
            caller(STATE, "get_output_blocking", BOTH_RAYS),
            Place(STATE, "get_output_blocking", "leaf", BOTH_RAYS, every_s=0.01),
        ),
    ),
    Site("ray.data.next_block", "Ray Data's next block", (caller(SPLIT, "gen_blocks", BOTH_RAYS),)),
    Site(
        "ray.data.shutdown",
        "end of Ray Data's executor",
        (caller(f"{EXECUTION}streaming_executor.py", "shutdown", BOTH_RAYS),),
    ),
)
