"""Two busy actors, one of them with a hostile name, and a task that runs one function after another."""

from typing import Any

import ray


class Trainer:
    def train(self) -> None:
        while True:
            self.step()

    def step(self) -> int:
        return sum(number * number for number in range(2000))


@ray.remote(num_cpus=0)
def load() -> None:
    while True:
        sorted(range(3000), key=lambda number: -number)


ray.init()
trainers: list[Any] = [
    ray.remote(num_cpus=0)(Trainer).options(name=name).remote() for name in ("first", "<b>second</b>")
]
refs = [trainer.train.remote() for trainer in trainers] + [load.remote()]
print("ready", flush=True)
ray.get(refs)
