"""Waits for stores of torch.distributed, each in its own thread: for keys, for a server, for clients.

``torch_stores.py PORT``: a store at PORT, nothing at the next port, and at the one after it a store without clients.
"""

from __future__ import annotations

import sys
import threading
import time
from datetime import timedelta

import torch.distributed as dist

PORT = int(sys.argv[1])
LONG, SHORT = timedelta(hours=2), timedelta(seconds=30)
HOST = "127.0.0.1"


def client(port: int = PORT) -> dist.TCPStore:
    return dist.TCPStore(HOST, port, 3, is_master=False, timeout=LONG, wait_for_workers=False)


def wait() -> None:
    client().wait(["ready", "loaded"])


def get() -> None:
    print(1, client().get("version"))


def of_prefix() -> None:
    store = dist.PrefixStore("outer", dist.PrefixStore("inner", client()))
    store.wait(["step"], SHORT)


def connect() -> None:
    client(PORT + 1)


def serve() -> None:
    dist.TCPStore(host_name=HOST, port=PORT + 2, world_size=3, is_master=True, timeout=LONG)


server = dist.TCPStore(HOST, PORT, 3, is_master=True, timeout=LONG, wait_for_workers=False)
for function in (wait, get, of_prefix, connect, serve):
    threading.Thread(target=function, name=function.__name__, daemon=True).start()
print("ready", flush=True)
time.sleep(600)
