"""Sample one process and print the answer of a node's probe as JSON: sample_process.py PID PYSPY"""

import sys

import msgspec

from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.pyspy import PySpy
from dstack.probes.node.wire import ReadTarget, SampleOptions

OPTIONS: SampleOptions = {
    "native": False,
    "locals": False,
    "pause": False,
    "children": False,
    "deadline_s": 20.0,
}


def main() -> None:
    probe = NodeProbe()
    probe._reader.tool = PySpy(sys.argv[2])
    target: ReadTarget = {"worker_id": "w", "pid": int(sys.argv[1]), "port": 0, "is_driver": False}
    print(msgspec.json.encode(probe.sample([target], OPTIONS)).decode())


if __name__ == "__main__":
    main()
