"""Two jobs reserve a CPU each, and reserve another one while they hold the first.

It can hang: with fewer than four CPUs both jobs can hold one and wait for a second one for ever.
"""

import ray
from ray.util.placement_group import placement_group, remove_placement_group


@ray.remote(num_cpus=0)
def job():
    stages = []
    for _ in range(2):
        stage = placement_group([{"CPU": 1}])
        ray.get(stage.ready())
        stages.append(stage)
    for stage in stages:
        remove_placement_group(stage)
    return len(stages)


ray.init(num_cpus=4, include_dashboard=False)
print(ray.get([job.remote(), job.remote()]))
