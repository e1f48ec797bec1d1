"""The first process of one emulated host: init.py NAME HOSTS_FILE USER KEPT...

Runs in new mount, pid, ipc, uts and network namespaces. Gives the host a name, its own ``/tmp``, ``/dev/shm`` and home,
and name resolution from HOSTS_FILE alone. The home belongs to USER, a number. The KEPT directories are visible to that
user even if they are under ``/tmp``, or under a directory that only root may search, which is empty otherwise. Prints
`up`, then adopts and reaps orphans until it is killed, which ends the whole host.
"""

import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

HOME = Path("/tmp/home")


def main() -> None:
    name, hosts_file, user, *kept = sys.argv[1:]
    socket.sethostname(name)
    _mount("--bind", hosts_file, "/etc/hosts")
    _mount("--bind", "/dev/null", "/etc/resolv.conf")
    directories = [Path(directory) for directory in kept]
    if int(user):
        for closed in {*filter(None, map(_closed_parent, directories))}:
            _cover(closed, directories, "mode=755")
    _cover(Path("/tmp"), directories, "mode=1777,size=2g")
    _mount("-t", "tmpfs", "-o", "size=1g,mode=1777", "tmpfs", "/dev/shm")
    for directory in (HOME, HOME / ".ray"):
        directory.mkdir()
        os.chown(directory, int(user), -1)
    os.chdir(HOME)
    print("up", flush=True)
    _reap_for_ever()


def _closed_parent(directory: Path) -> Path | None:
    """The topmost directory on the path that other users may not search."""
    return next((one for one in reversed(directory.parents) if not one.stat().st_mode & stat.S_IXOTH), None)


def _cover(covered: Path, kept: list[Path], options: str) -> None:
    """Mount an empty directory that contains only those of ``kept`` that are below it."""
    inside = {directory: os.open(directory, os.O_PATH) for directory in kept if directory.is_relative_to(covered)}
    _mount("-t", "tmpfs", "-o", options, "tmpfs", str(covered))
    for directory, descriptor in inside.items():
        directory.mkdir(parents=True, exist_ok=True)
        _mount("--no-canonicalize", "--bind", f"/proc/{os.getpid()}/fd/{descriptor}", str(directory))
        os.close(descriptor)


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
