"""A client that asks a server for news, which the server answers after 40 s if there are none.

Each request waits on a socket for a thread of the server, and that thread for a timer. It goes on for ever.

Expected: running
Members: Client.follow
"""

import http.client
import http.server
import os
import threading
from typing import Any

import ray


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        threading.Event().wait(40)  # nothing is new
        self.send_response(200)
        self.end_headers()


class Server:
    def start(self) -> int:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, name="server", daemon=True).start()
        return server.server_port


class Client:
    def follow(self, port: int) -> None:
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", "/news")
            connection.getresponse().read()


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    server: Any = ray.remote(Server).options(num_cpus=0).remote()
    client: Any = ray.remote(Client).options(num_cpus=0).remote()
    follows = client.follow.remote(ray.get(server.start.remote()))
    print("ready", flush=True)
    ray.get(follows)


if __name__ == "__main__":
    main()
