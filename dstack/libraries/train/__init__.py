"""Where workers wait in Ray Train and Tune, and their actors; seen on Ray 2.46 and 2.60."""

from __future__ import annotations

from dstack.libraries import Recogniser
from dstack.observed.call_site import BOTH_RAYS, NEW_RAY, Site, caller, site

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
    site(
        "ray.train.collective.barrier",
        caller(COLLECTIVE, "barrier", NEW_RAY),
        name="barrier of ray.train.collective",
    ),
    site(
        "ray.train.collective.broadcast_from_rank_zero",
        caller(COLLECTIVE, "broadcast_from_rank_zero", NEW_RAY),
        name="broadcast of ray.train.collective",
    ),
)
MEETING = Site("ray.train.meeting", "meeting of the ranks of ray.train", library="ray.train")
"""In an actor of Train, a coroutine for each rank waits for the others; a call is named by the operation."""
VALIDATION = Site("ray.train.validation", "validation of checkpoints by ray.train", library="ray.train")
"""In Train's controller, a coroutine for each rank that asked for its checkpoints waits for their validation tasks."""
HELPERS = (("/ray/train/_internal/session.py", "get_next", "training_thread"),)
"""Methods that wait for a thread: file, function and the attribute with its Thread object; Ray 2.46 and 2.60."""

PARTS = (
    Recogniser(
        r"TrainController", "Train's controller", which=" {id}", only_directs=True, group="Train's worker group"
    ),
    Recogniser(r"RayTrainWorker|_WrappedExecutable", "Train worker", which=" {id}", calls_only_for_state=True),
    Recogniser(r"SynchronizationActor", "Train's barrier", which=" {id}", only_directs=True),
    Recogniser(r"PlacementGroupCleaner", "Train's placement-group cleaner", which=" {id}", is_machinery=True),
    Recogniser(r"PreemptionWatcher", "Train's preemption watcher", which=" {id}", is_machinery=True),
)
TRIALS = (Recogniser(r"ImplicitFunc", "Tune trial", which=" {id}", work=("train", "step of")),)
"""The actors of Tune."""
TRAINING = "TrainingThread("
"""The name of the thread that runs the training function of a worker begins so (Ray 2.60)."""
RETRYING = ("ray/train/v2/_internal/execution/controller/controller.py",)
"""Loops that retry after a timeout, for ever by default; seen on Ray 2.60."""
ENDLESS = (
    caller(f"/{RETRYING[0]}", "run", NEW_RAY),
    caller("/ray/train/_internal/session.py", "_get_result_from_queues", NEW_RAY),
    caller("/ray/air/execution/_internal/actor_manager.py", "next", NEW_RAY),
)
"""The loop of Train's controller, with all that it calls, where a worker of the first Train awaits a result, and where
the loop of Tune's trials polls for the next event."""
