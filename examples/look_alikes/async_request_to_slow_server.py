"""The same with a server that works for long before it answers.

Expected: running
Members: Client.fetch
"""

import asyncio
import os
import socket
import threading
import time
from typing import Any

import ray


class Server:
    def start(self) -> int:
        listening = socket.create_server(("127.0.0.1", 0))

        def answer() -> None:
            connection, _ = listening.accept()
            time.sleep(900)
            connection.sendall(b"server")

        threading.Thread(target=answer, name="server", daemon=True).start()
        port: int = listening.getsockname()[1]
        return port


class Client:
    async def fetch(self, port: int) -> bytes:
        reader, _ = await asyncio.open_connection("127.0.0.1", port)
        return await reader.read()


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    server: Any = ray.remote(Server).options(num_cpus=0).remote()
    client: Any = ray.remote(Client).options(num_cpus=0).remote()
    fetched = client.fetch.remote(ray.get(server.start.remote()))
    print("ready", flush=True)
    print(ray.get(fetched))


if __name__ == "__main__":
    main()
