"""The first process of one emulated host: init.py NAME HOSTS_FILE KEPT...

Runs in new mount, pid, ipc, uts and network namespaces. Gives the host a name, its own ``/tmp``, ``/dev/shm`` and home,
and name resolution from HOSTS_FILE alone; the KEPT directories are visible even if they are under ``/tmp``. Prints
`up`, then adopts and reaps orphans until it is killed, which ends the whole host.
"""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

HOME = Path("/tmp/home")


def main() -> None:
    name, hosts_file, *kept = sys.argv[1:]
    socket.sethostname(name)
    _mount("--bind", hosts_file, "/etc/hosts")
    _mount("--bind", "/dev/null", "/etc/resolv.conf")
    _own_tmp([Path(directory) for directory in kept])
    _mount("-t", "tmpfs", "-o", "size=1g,mode=1777", "tmpfs", "/dev/shm")
    (HOME / ".ray").mkdir(parents=True)
    os.chdir(HOME)
    print("up", flush=True)
    _reap_for_ever()


def _own_tmp(kept: list[Path]) -> None:
    """Mount an empty ``/tmp`` that contains only ``kept``."""
    covered = {directory: os.open(directory, os.O_PATH) for directory in kept if directory.is_relative_to("/tmp")}
    _mount("-t", "tmpfs", "-o", "size=2g,mode=1777", "tmpfs", "/tmp")
    for directory, descriptor in covered.items():
        directory.mkdir(parents=True, exist_ok=True)
        _mount("--no-canonicalize", "--bind", f"/proc/{os.getpid()}/fd/{descriptor}", str(directory))


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def _reap_for_ever() -> None:
    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.1)


if __name__ == "__main__":
    main()
