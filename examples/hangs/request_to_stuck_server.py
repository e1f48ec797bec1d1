"""An actor asks an HTTP server in another actor, whose handler waits for the first actor.

Expected: deadlock
Members: Client.fetch
Points at: return connection.getresponse().read()
Next step: Raise max_concurrency of Client to 2 (now 1)
"""

import http.client
import http.server
import os
import threading
from typing import Any

import ray


class Server:
    def __init__(self) -> None:
        self.client: Any = None

    def start(self, client: Any) -> int:
        self.client, owner = client, self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text: str = ray.get(owner.client.name.remote())
                self.send_response(200)
                self.end_headers()
                self.wfile.write(text.encode())

        server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.handle_request, name="server", daemon=True).start()
        return server.server_port


class Client:
    def name(self) -> str:
        return "client"

    def fetch(self, port: int) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/")
        return connection.getresponse().read()


def main() -> None:
    address = os.environ.get("RAY_ADDRESS", "local")
    ray.init(address, num_cpus=2 if address == "local" else None, include_dashboard=False)
    server: Any = ray.remote(Server).options(num_cpus=0).remote()
    client: Any = ray.remote(Client).options(num_cpus=0).remote()
    port = ray.get(server.start.remote(client))
    fetched = client.fetch.remote(port)
    print("ready", flush=True)
    print(ray.get(fetched))


if __name__ == "__main__":
    main()
