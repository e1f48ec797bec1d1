"""An actor asks a server that another actor runs in a child process, as inference engines do; its handler never ends.

The handler is a coroutine on the event loop of the child. The task that would have set its event has failed.

Expected: stalled
Members: Client.fetch
Points at: return connection.getresponse().read()
Next step: Correct the ZeroDivisionError at request_to_child_server.py
"""

import asyncio
import http.client
import multiprocessing
import multiprocessing.connection
import os
from typing import Any

import ray


class Engine:
    def __init__(self) -> None:
        self.answered = asyncio.Event()
        self.loop = asyncio.create_task(self.forward(0))

    async def forward(self, size: int) -> None:
        print(1 / size)
        self.answered.set()

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        await self.answered.wait()
        writer.close()


def serve(port: multiprocessing.connection.Connection) -> None:
    async def main() -> None:
        server = await asyncio.start_server(Engine().handle, "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


class Host:
    def start(self) -> Any:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        self.child = context.Process(target=serve, args=(theirs,), daemon=True)
        self.child.start()
        return ours.recv()


class Client:
    def fetch(self, port: int) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/")
        return connection.getresponse().read()


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    host: Any = ray.remote(Host).options(num_cpus=0).remote()
    client: Any = ray.remote(Client).options(num_cpus=0).remote()
    port = ray.get(host.start.remote())
    fetched = client.fetch.remote(port)
    print("ready", flush=True)
    print(ray.get(fetched))


if __name__ == "__main__":
    main()
