"""An actor that is called while its constructor still runs.

The plugin registers in `__init__` and waits until that is done. The registry first asks the plugin for its version, but
calls on an actor start only after its `__init__` has ended.

Expected: deadlock
Members: plugin:Plugin.__init__, Registry.register, Plugin.version
Points at: self.number: int = ray.get(registry.register.remote(me))
Next step: Make the call of plugin:Plugin.__init__ after it has ended, or pass its result in as an argument
"""

import os
from typing import Any

import ray


class Registry:
    def register(self, plugin: Any) -> int:
        version: int = ray.get(plugin.version.remote())
        return version


class Plugin:
    def __init__(self, registry: Any) -> None:
        me = ray.get_runtime_context().current_actor
        self.number: int = ray.get(registry.register.remote(me))

    def version(self) -> int:
        return 3


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    registry: Any = ray.remote(Registry).options(name="registry").remote()
    ray.get(registry.__ray_ready__.remote())
    plugin: Any = ray.remote(Plugin).options(name="plugin").remote(registry)
    print("ready", flush=True)
    print(ray.get(plugin.version.remote()))


if __name__ == "__main__":
    main()
