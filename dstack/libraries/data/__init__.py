"""Where threads wait in Ray Data, and its actors, threads and tasks; seen on Ray 2.46 and 2.60."""

from __future__ import annotations

import re

from dstack.libraries import Recogniser
from dstack.observed.call_site import BOTH_RAYS, Place, caller, site

EXECUTION = "/ray/data/_internal/execution/"
STATE = f"{EXECUTION}streaming_executor_state.py"
SPLIT = "/ray/data/_internal/iterator/stream_split_iterator.py"

MEETING = site(
    "ray.data.streaming_split",
    Place(SPLIT, "_barrier", "leaf", BOTH_RAYS, every_s=0.1),
    name="the other consumers of a dataset's streaming_split",
)
"""In the coordinator of a dataset, a thread for each consumer polls until all have come."""

IN_EXECUTOR = site("ray.data.executor", caller(STATE, "process_completed_tasks", BOTH_RAYS), name="Ray Data's executor")

SITES = (
    MEETING,
    IN_EXECUTOR,
    site(
        "ray.data.next_output",
        caller(STATE, "get_output_blocking", BOTH_RAYS),
        Place(STATE, "get_output_blocking", "leaf", BOTH_RAYS, every_s=0.01),
        name="Ray Data's next output",
    ),
    site("ray.data.next_block", caller(SPLIT, "gen_blocks", BOTH_RAYS), name="Ray Data's next block"),
    site(
        "ray.data.shutdown",
        caller(f"{EXECUTION}streaming_executor.py", "shutdown", BOTH_RAYS),
        name="end of Ray Data's executor",
    ),
)

PARTS = (
    # up to 2.46 the class of a map worker does not name its operator, but its tasks do
    Recogniser(
        r"MapWorker\((?P<operator>.+)\)", "Data operator {operator}", which=", worker {id}", work=("submit", "task of")
    ),
    Recogniser(r"_MapWorker", "Data operator", which=", worker {id}", work=("submit", "task of")),
    Recogniser(r"HashShuffleAggregator", "Data's shuffle", which=", aggregator {id}"),
    Recogniser(r"SplitCoordinator", "Data's streaming_split", which=" {id}", only_directs=True),
    Recogniser(r"_StatsActor", "Data's statistics", actor_name=r"datasets_stats_actor", is_machinery=True),
    Recogniser(
        r"AutoscalingRequester|_AutoscalingCoordinatorActor",
        "Data's autoscaling",
        actor_name=r"AutoscalingRequester.*|AutoscalingCoordinator",
        is_machinery=True,
    ),
    Recogniser(
        r"ActorLocationTracker", "Data's list of its workers", actor_name=r"ActorLocationTracker", is_machinery=True
    ),
    Recogniser(
        r"_UsageCollectionActor",
        "Data's usage statistics",
        actor_name=r"DataUsageCollectionActor.*|.*Usage.*",
        is_machinery=True,
    ),
)

ENDLESS = (caller(STATE, "process_completed_tasks", BOTH_RAYS), caller(STATE, "get_output_blocking", BOTH_RAYS))
"""Where the loop of an executor polls for its tasks, and where its consumer polls for the next output."""

EXECUTOR = "StreamingExecutor"
"""The beginning of the names of the threads that execute a dataset; Ray 2.46 and 2.60."""

OPERATORS = r"Read\w*|Write\w*|Map|MapBatches|MapRows|FlatMap|Filter|Project|Limit|Repartition|SplitBlocks"
DATA_TASK = re.compile(rf"(?=.*(->|\())({OPERATORS})(\(.*?\))?(->({OPERATORS})(\(.*?\))?)*")
"""A Data operator by name, as ``ReadParquet->Map(parse)``; one word alone may be a user's task."""
