"""Ctrl-C ends a command that waits for somebody's answer at once, in one line."""

import socket
import subprocess
from signal import SIGINT

from tests.dstack import DSTACK

MOST_S = 1.0


def test_ctrl_c_while_the_gcs_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(30)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with subprocess.Popen(
            [*DSTACK, "check", "--address", address], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            silent.accept()[0].close()  # to see whether anybody listens
            with silent.accept()[0]:  # to ask
                process.send_signal(SIGINT)
                told = process.communicate(timeout=MOST_S)

    assert (process.returncode, *told) == (130, "", "Interrupted.\n")
