"""Streaming generators: slow consumers of quick producers held back by backpressure, and the other way round."""

import random
import time
from collections.abc import Iterator
from typing import Any

import ray

from benchmarks.soak.rounds import play_for_ever


@ray.remote(num_cpus=0.25, num_returns="streaming", _generator_backpressure_num_objects=2)
def numbers(count: int, pause_s: float) -> Iterator[int]:
    for number in range(count):
        time.sleep(pause_s)
        yield number


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Source:
    @ray.method(num_returns="streaming")
    def lines(self, count: int) -> Iterator[str]:
        for number in range(count):
            time.sleep(random.uniform(0, 0.02))
            yield f"line {number}"


def consume(stream: Any, pause_s: float) -> int:
    count = 0
    for ref in stream:
        ray.get(ref)
        time.sleep(pause_s)
        count += 1
    return count


@ray.remote(num_cpus=0)
def consume_elsewhere(count: int) -> int:
    return consume(numbers.remote(count, 0.01), 0)


def source_that_answers() -> Any:
    source = Source.remote()
    assert consume(source.lines.remote(1), 0) == 1
    return source


def consume_all(source: Any) -> None:
    elsewhere = consume_elsewhere.remote(20)
    assert consume(numbers.remote(20, 0), 0.02) == 20
    assert consume(numbers.remote(5, 0.2), 0) == 5
    assert consume(source.lines.remote(20), 0) == 20
    assert ray.get(elsewhere) == 20


def main() -> None:
    ray.init()
    play_for_ever(source_that_answers, consume_all)


if __name__ == "__main__":
    main()
