"""Print the live jobs and actors of dstack in a cluster, as a JSON list of sentences: list_own.py ADDRESS

Reads the GCS's tables without dstack, because it judges dstack.
"""

import json
import sys
from typing import Any

from ray._private.state import GlobalState
from ray._raylet import GcsClientOptions
from ray.core.generated import gcs_pb2

NAMESPACE = "_dstack"


def main() -> None:
    state = GlobalState()
    options = GcsClientOptions.create(sys.argv[1], None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
    state._initialize_global_state(options)
    rows = accessor_of(state).get_job_table(skip_submission_job_info_field=True, skip_is_running_tasks_field=True)
    jobs = [job for job in map(gcs_pb2.JobTableData.FromString, rows) if job.config.ray_namespace == NAMESPACE]
    ids = {job.job_id.hex() for job in jobs}
    live = [f"job {job.job_id.hex()} of dstack runs: {job.entrypoint}" for job in jobs if not job.is_dead]
    live += [
        f"actor {actor['ActorID']} of dstack, {actor['ActorClassName']}, is {actor['State']}"
        for actor in state.actor_table(None).values()
        if actor["JobID"] in ids and actor["State"] != "DEAD"
    ]
    print(len(jobs), "jobs of dstack so far")
    print(json.dumps(live))


def accessor_of(state: GlobalState) -> Any:
    """The connection to the GCS; Ray 2.46 has no function that returns it."""
    if hasattr(state, "_connect_and_get_accessor"):
        return state._connect_and_get_accessor()
    state._check_connected()
    return state.global_state_accessor


if __name__ == "__main__":
    main()
