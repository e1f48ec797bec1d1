"""The same with a handler that works on the request for long.

Expected: running
Members: Client.fetch
Points at: await asyncio.sleep(900)
"""

import asyncio
import http.client
import multiprocessing
import multiprocessing.connection
import os
from typing import Any

import ray


async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    await asyncio.sleep(900)
    writer.close()


def serve(port: multiprocessing.connection.Connection) -> None:
    async def main() -> None:
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
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
    fetched = client.fetch.remote(ray.get(host.start.remote()))
    print("ready", flush=True)
    print(ray.get(fetched))


if __name__ == "__main__":
    main()
