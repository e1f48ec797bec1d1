"""An inference server in a child process of an actor: its engine has failed, so a request of another actor never ends.

The server runs FastAPI on uvicorn, whose main coroutine wakes ten times a second. The engine is an asyncio task of the
server, and would have set the future that the handler awaits.

Expected: stalled
Members: Client.fetch
Points at: return await answer
Needs: ray[serve]
Next step: Correct the RuntimeError at engine_of_child_server_raised.py
"""

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import fastapi
import ray
import uvicorn


class Engine:
    def __init__(self) -> None:
        self.requests: asyncio.Queue[asyncio.Future[str]] = asyncio.Queue()
        self.answered: list[asyncio.Future[str]] = []

    async def run(self) -> None:
        while True:
            self.answered.append(await self.requests.get())
            raise RuntimeError("out of memory")


def app_of(engine: Engine) -> fastapi.FastAPI:
    @asynccontextmanager
    async def lifespan(app: fastapi.FastAPI) -> Any:
        app.state.engine = asyncio.create_task(engine.run())
        yield

    app = fastapi.FastAPI(lifespan=lifespan)

    @app.get("/")
    async def generate() -> str:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        await engine.requests.put(answer)
        return await answer

    return app


class Host:
    def start(self, program: str, port: int) -> None:
        self.child = subprocess.Popen([sys.executable, program, str(port)])


class Client:
    async def fetch(self, port: int) -> str:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
            for _ in range(600):
                try:
                    async with session.get(f"http://127.0.0.1:{port}/") as response:
                        return await response.text()
                except aiohttp.ClientConnectorError:
                    await asyncio.sleep(0.1)  # it has not started yet
        raise TimeoutError


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    host: Any = ray.remote(Host).options(num_cpus=0).remote()
    client: Any = ray.remote(Client).options(num_cpus=0).remote()
    ray.get(host.start.remote(os.path.abspath(__file__), port))
    fetched = client.fetch.remote(port)
    print("ready", flush=True)
    print(ray.get(fetched))


if __name__ == "__main__":
    if sys.argv[1:]:
        uvicorn.run(app_of(Engine()), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
    else:
        main()
