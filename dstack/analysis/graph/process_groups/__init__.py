"""Waits in calls on process groups: for the calls of other members, so for the executions that may make them.

A member has entered a call if any execution of the snapshot is in the same call of the group for its rank. The members
that have not entered must do so. But which members have not is unknown: in a broadcast, the root may have sent its data
and proceeded, and torch.distributed may begin a call without waiting for it (``async_op``). If no data is in transit
and the call does not end, at least one member outside of it has not entered. So a call waits for any of these. It waits
for each of them only if no member can enter without waiting and leave before the others.

No data is in transit if the waiter's thread does not run between two samples (``GroupCall.mark``) and its process uses
hardly any CPU time meanwhile: its library receives and sends nothing.
"""
