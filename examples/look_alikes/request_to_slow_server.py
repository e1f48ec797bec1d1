"""The same with a handler that works for long before it answers.

Expected: running
Members: Client.fetch
"""

import http.client
import http.server
import os
import threading
import time
from typing import Any

import ray


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        time.sleep(900)
        self.send_response(200)
        self.end_headers()


class Server:
    def start(self) -> int:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, name="server", daemon=True).start()
        return server.server_port


class Client:
    def fetch(self, port: int) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/")
        return connection.getresponse().read()


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
