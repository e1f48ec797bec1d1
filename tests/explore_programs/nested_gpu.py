"""A training task holds a GPU while its evaluation needs another one.

It can hang: with fewer than two GPUs for each trial that runs at once, no evaluation can ever start.
"""

import ray


@ray.remote(num_cpus=0, num_gpus=1)
def evaluate(loss):
    return loss / 2


@ray.remote(num_cpus=0, num_gpus=1)
def trial(loss):
    return ray.get(evaluate.remote(loss))


ray.init(num_cpus=2, num_gpus=4, include_dashboard=False)
print(ray.get([trial.remote(loss) for loss in (1.0, 2.0)]))
