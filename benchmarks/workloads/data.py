"""Ray Data: tasks, a pool of actors and a shuffle behind each other, consumed in batches and all at once."""

import time
from typing import Any

import ray
import ray.data

from benchmarks.soak.rounds import play_for_ever

Batch = dict[str, Any]


def double(batch: Batch) -> Batch:
    time.sleep(0.05)
    return {"id": batch["id"] * 2}


class Halver:
    def __call__(self, batch: Batch) -> Batch:
        time.sleep(0.05)
        return {"id": batch["id"] // 2}


def consume(_: None) -> None:
    numbers = ray.data.range(400, override_num_blocks=8).map_batches(double).map_batches(Halver, concurrency=1)
    assert sum(len(batch["id"]) for batch in numbers.iter_batches(batch_size=50)) == 400
    assert numbers.random_shuffle().materialize().count() == 400


def main() -> None:
    ray.init(log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    play_for_ever(lambda: None, consume)


if __name__ == "__main__":
    main()
