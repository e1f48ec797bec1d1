"""Where processes wait in vLLM's message queues, by which an engine sends each step to its workers."""

from __future__ import annotations

from dstack.observed.call_site import site

FILE = "/vllm/distributed/device_communicators/shm_broadcast.py"
READ = site("vllm.MessageQueue.dequeue", name="MessageQueue.dequeue of vLLM", ended_by="a message in the queue")
WRITE = site("vllm.MessageQueue.enqueue", name="MessageQueue.enqueue of vLLM", may_be_idle=False)
"""Neither has a place: a thread in them may use the CPU all the time, so only the flags of the queue prove a wait."""

SITES = (READ, WRITE)
