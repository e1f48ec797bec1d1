"""A driver whose person at the terminal has not typed yet what opens the gate.

Without a terminal as its standard input, it makes one.

Expected: idle
Outside: driver in InteractiveConsole.raw_input of code
Next step: driver prompt_of_driver.py waits for input at its terminal
"""

import code
import os
import pty
import sys
import threading
from typing import Any

import ray


class Gate:
    def __init__(self) -> None:
        self.is_open = threading.Event()

    def enter(self) -> None:
        self.is_open.wait()

    def open(self) -> None:
        self.is_open.set()


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    gate: Any = ray.remote(Gate).options(num_cpus=0, max_concurrency=2).remote()
    entered = gate.enter.remote()
    print("ready", flush=True)
    if not sys.stdin.isatty():
        _, terminal = pty.openpty()
        os.dup2(terminal, sys.stdin.fileno())
    code.interact("Type gate.open.remote()", local={"gate": gate, "entered": entered, "ray": ray})


if __name__ == "__main__":
    main()
