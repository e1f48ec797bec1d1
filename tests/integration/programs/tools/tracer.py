"""Attach to a process as a debugger does: tracer.py PID [stopped], where ``stopped`` also stops its main thread."""

import ctypes
import os
import sys
import time

PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206  # linux/ptrace.h

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
pid, stops = int(sys.argv[1]), "stopped" in sys.argv
if libc.ptrace(PTRACE_ATTACH if stops else PTRACE_SEIZE, pid, None, None):
    sys.exit(os.strerror(ctypes.get_errno()))
if stops:
    os.waitpid(pid, 0)
print("ready", flush=True)
time.sleep(100_000)
