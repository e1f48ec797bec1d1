"""A driver that fails while a stage of its compiled graph runs, and then does not end.

At the exit of the process `ray.shutdown` tears the graph down, which waits until all stages have ended. The stage
`polish` sleeps for a quarter of an hour. The exception is already printed, so the program seems to have ended.

Expected: running (finding: polling)
Members: exit of driver exit_behind_graph_stage.py (ray.shutdown)
Points at: time.sleep(900)
Next step: exit of driver exit_behind_graph_stage.py (ray.shutdown) waits for stage Workshop.polish
"""

import os
import time
from typing import Any

import ray
from ray.dag import InputNode


class Workshop:
    def cut(self, item: str) -> str:
        return f"cut {item}"

    def polish(self, item: str) -> str:
        time.sleep(900)
        return f"polished {item}"


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    workshop: Any = ray.remote(num_cpus=0)(Workshop)
    cutter, polisher = workshop.options(name="cutter").remote(), workshop.options(name="polisher").remote()
    with InputNode() as item:
        graph: Any = polisher.polish.bind(cutter.cut.bind(item))
    compiled = graph.experimental_compile()
    result = compiled.execute("gem")
    time.sleep(2.0)  # until the stage has begun
    print("ready", flush=True)
    raise RuntimeError(f"{result} was not expected")


if __name__ == "__main__":
    main()
