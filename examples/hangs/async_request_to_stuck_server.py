"""An async actor asks a server in another actor by asyncio's streams; the server's thread waits for the async actor.

The event loop watches the socket, so the coroutine is known to wait for the process at its other end.

Expected: stalled
Members: Client.fetch
Points at: return await reader.read()
Next step: let it run: raise max_concurrency
"""

import asyncio
import os
import socket
import threading
from typing import Any

import ray


class Server:
    def start(self, client: Any) -> int:
        listening = socket.create_server(("127.0.0.1", 0))

        def answer() -> None:
            connection, _ = listening.accept()
            connection.sendall(ray.get(client.name.remote()))

        threading.Thread(target=answer, name="server", daemon=True).start()
        port: int = listening.getsockname()[1]
        return port


class Client:
    async def name(self) -> bytes:
        return b"client"

    async def fetch(self, port: int) -> bytes:
        reader, _ = await asyncio.open_connection("127.0.0.1", port)
        return await reader.read()


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    server: Any = ray.remote(Server).options(num_cpus=0).remote()
    client: Any = ray.remote(Client).options(num_cpus=0, max_concurrency=1).remote()
    port = ray.get(server.start.remote(client))
    fetched = client.fetch.remote(port)
    print("ready", flush=True)
    print(ray.get(fetched))


if __name__ == "__main__":
    main()
