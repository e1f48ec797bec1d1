"""Names of functions whose effect is known: what computes, polls, ends a wait, or stops a task or a process.

Source names them with their module, code objects without it. A name is no proof of what a function does. What computes
or polls must be right, or a loop that does more would count as one that only polls: so these tables are short, and
names that a file defines itself do not count. What stops or ends a wait may be wrong: then a wait is not called
endless.
"""

from __future__ import annotations

import builtins
import re

# In source

PURE = re.compile(
    r"len|min|max|sum|int|float|str|bool|list|set|dict|tuple|frozenset|sorted|reversed|range|zip|enumerate|isinstance"
    r"|repr|format|any|all|abs|round"
)
"""Functions of Python that only compute."""
KEEPS_EMPTY = re.compile(r"len|sum|bool|list|set|dict|tuple|frozenset|sorted|any")
"""Those whose value is false if their argument is empty."""
VIEWS = re.compile(r"[\w.]+\.(keys|values|items)")
CLOCKS = re.compile(r"(time\.)?(time|monotonic|perf_counter)(_ns)?|(datetime\.)*datetime\.(now|utcnow)")
SLEEPS = re.compile(r"(time|asyncio|trio|anyio|gevent|eventlet)\.sleep")
LOGS = re.compile(
    r"(.*\.)?_*(log|logger|logging)\.(debug|info|warning|warn|error|exception|critical|log)|print"
    r"|sys\.std(out|err)\.(write|flush)",
    re.IGNORECASE,
)
METHODS = re.compile(r"get|items|keys|values|startswith|endswith|lower|upper|strip|split|count|format")
"""Methods of Python's own values, if a result is one."""
CHANGES = re.compile(r"append|extend|add|update|insert|remove|discard|pop|clear")
RETURNING = re.compile(r"wait|acquire|join|poll|select|is_ready")
"""Names of polls that return if nothing came; others with a timeout raise an exception."""
EMPTY_IF_NOTHING = re.compile(r"wait|acquire|poll|select")
OF_SEVERAL = re.compile(r"((ray|asyncio|(concurrent\.)?futures)\.)?wait")
"""Functions that return what is done, and what is not."""
STATES = {"is_set": False, "is_alive": True, "done": None, "ready": None, "locked": None, "empty": None, "qsize": None}
"""Methods that show the state of the object that is polled, with their value if nothing came; None for either."""
AWAITABLE = re.compile(r"get|put|wait|acquire|join|read|readline|recv|receive|shield")
"""Waits that ``asyncio.wait_for`` limits."""
TIMED_OUT = re.compile(r"(Queue)?(Empty|Full)|(Get)?TimeoutError|TimeoutExpired|(Base)?Exception")
"""Exceptions of a poll that nothing came for, and their bases."""
QUIET = re.compile(r"sleep|debug|info|warning|error|exception|log|flush")
"""Names of calls that say nothing about what a loop polls."""
OWN_FUNCTIONS = frozenset(dir(builtins)) - {"open", "input"}
STOPS = ("cancel", "kill", "__ray_terminate__")
"""Functions of Ray, and a method of actors, that stop a task or an actor (Ray 2.46 to 2.60)."""
ENDS_PROCESS = re.compile(
    r"os\.(_exit|abort|kill|killpg)|signal\.(raise_signal|pthread_kill)|_thread\.interrupt_main|ray\.actor\.exit_actor"
)
"""Functions that end the process, or interrupt its main thread. Which process ``os.kill`` ends is not known."""
WAITS = ("ray.get", "ray.wait")
MODULES = ("ray", "ray.actor", "os", "signal", "_thread")

# In code objects

EXITS = re.compile(r"^(_?exit|exit_actor|abort|killpg|raise_signal|pthread_kill|interrupt_main)$")
"""Names of functions that end or interrupt their own process."""
CANCELS = re.compile(rf"cancel|kill|terminate|abort|interrupt|throw|{EXITS.pattern}")
"""Names of functions that end a task, thread or process as a whole."""
ENDS_WAIT = re.compile(rf"{CANCELS.pattern}|release|notify|wake|^(set|put|close|stop|finish)")
"""Names of functions that end the wait of another."""
