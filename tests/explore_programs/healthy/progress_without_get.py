"""A server reports progress to its client, and does not wait for the client to read it.

It cannot hang: only the client waits; its progress report is queued until serve() has ended.
"""

import time

import ray


@ray.remote
class Model:
    def predict(self):
        return 1


@ray.remote
class Server:
    def __init__(self, model):
        self.model = model

    def serve(self, client):
        began = time.monotonic()
        result = ray.get(self.model.predict.remote())
        if time.monotonic() - began > 0.5:
            client.on_progress.remote()
        return result


@ray.remote
class Client:
    def on_progress(self):
        return None

    def run(self, server, me):
        return ray.get(server.serve.remote(me))


ray.init(num_cpus=2, include_dashboard=False)
model = Model.remote()
server, client = Server.remote(model), Client.remote()
ray.get([model.predict.remote(), client.on_progress.remote()])
print(ray.get(client.run.remote(server, client)))
