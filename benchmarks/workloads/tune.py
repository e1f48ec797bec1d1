"""Ray Tune: more trials than there is room for, which report and end."""

import tempfile
import time

import ray
from ray import tune

from benchmarks.soak.rounds import play_for_ever


def climb(config: dict[str, float]) -> None:
    for step in range(5):
        time.sleep(0.1)
        tune.report({"height": config["slope"] * step})


def fit(_: None) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        tuner = tune.Tuner(
            tune.with_resources(climb, {"cpu": 1}),
            param_space={"slope": tune.grid_search([1.0, 2.0, 3.0, 4.0])},
            run_config=tune.RunConfig(
                storage_path=directory, verbose=0, failure_config=tune.FailureConfig(max_failures=-1)
            ),
        )
        assert tuner.fit().get_best_result("height", "max").config["slope"] == 4.0


def main() -> None:
    ray.init(log_to_driver=False)
    play_for_ever(lambda: None, fit)


if __name__ == "__main__":
    main()
