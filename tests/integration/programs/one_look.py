"""Looks at one process and prints, as JSON, what a node's probe tells of it: one_look.py PID PYSPY"""

import json
import sys

from dstack.probes.node.probe import NodeProbe
from dstack.probes.node.pyspy.runner import PySpy

OPTIONS = {"native": False, "locals": False, "nonblocking": False, "deadline_s": 20.0, "thread_context": None}


def main() -> None:
    probe = NodeProbe()
    probe._pyspy = PySpy(sys.argv[2])
    target = {"worker_id": "w", "pid": int(sys.argv[1]), "port": 0, "is_driver": False}
    print(json.dumps(probe.sample([target], OPTIONS)))


if __name__ == "__main__":
    main()
