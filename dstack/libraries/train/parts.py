"""The actors of Ray Train; seen on Ray 2.46 and 2.60."""

from __future__ import annotations

from dstack.libraries.recogniser import Recogniser
from dstack.observed.call_site import caller

PARTS = (
    Recogniser(r"TrainController", "Train's controller", which=" {id}", only_directs=True),
    Recogniser(r"RayTrainWorker|_WrappedExecutable", "Train worker", which=" {id}", calls_only_for_state=True),
    Recogniser(r"SynchronizationActor", "Train's barrier", which=" {id}", only_directs=True),
    Recogniser(r"PlacementGroupCleaner", "Train's placement-group cleaner", which=" {id}", is_machinery=True),
    Recogniser(r"PreemptionWatcher", "Train's preemption watcher", which=" {id}", is_machinery=True),
)
TRAINING = "TrainingThread("
"""The name of the thread that runs the training function of a worker begins so (Ray 2.60)."""
RETRYING = ("ray/train/v2/_internal/execution/controller/controller.py",)
"""Loops that retry after a timeout, for ever by default; seen on Ray 2.60."""
ENDLESS = (
    caller(f"/{RETRYING[0]}", "run", "Ray 2.60"),
    caller("/ray/train/_internal/session.py", "_get_result_from_queues", "Ray 2.60"),
)
"""The loop of Train's controller, with all that it calls, and where a worker of the first Train awaits a result."""
