"""A sink iterates over a stream whose source reads settings; a refresh of the settings asks the sink for its size.

It can hang: if the refresh begins while the stream is open, sink, source and settings wait for each other.
"""

import time

import ray


@ray.remote
class Settings:
    def connect(self, sink):
        self.sink = sink

    def batch(self):
        return 2

    def refresh(self):
        return ray.get(self.sink.size.remote())


@ray.remote
class Source:
    def __init__(self, settings):
        self.settings = settings

    def ready(self):
        return True

    def stream(self):
        for item in range(3):
            yield item * ray.get(self.settings.batch.remote())


@ray.remote
class Sink:
    def __init__(self, source):
        self.source = source
        self.items = []

    def size(self):
        return len(self.items)

    def consume(self):
        for ref in self.source.stream.options(num_returns="streaming").remote():
            self.items.append(ray.get(ref))
        return self.items


ray.init(num_cpus=2, include_dashboard=False)
settings = Settings.remote()
source = Source.remote(settings)
sink = Sink.remote(source)
ray.get([settings.connect.remote(sink), source.ready.remote(), sink.size.remote()])
consumed = sink.consume.remote()
time.sleep(0.6)
print(ray.get([consumed, settings.refresh.remote()]))
