"""Takes snapshots of a cluster in one session, one after another until it is killed: session.py ADDRESS

Prints a line for each: `NUMBER VERDICT NODES FAILURES`, or `NUMBER error MESSAGE`.
"""

import sys
import time

import dstack

PAUSE_S = 0.2


def main() -> None:
    number = 0
    with dstack.session(sys.argv[1]) as session:
        while True:
            number += 1
            try:
                found = session.check()
                failures = [one.reason for one in found.coverage.failures]
                print(number, found.verdict, found.coverage.nodes.total, failures, flush=True)
            except dstack.ClusterError as error:
                print(number, "error", error.message, flush=True)
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
