"""What a call on a process group waits for: the calls of other members, so the executions that may make them.

A member has entered a call if any execution of the snapshot is in the same call of the group for its rank. Of the
others, those that have not entered must do so. But which of them have not cannot be seen: in a broadcast, the root may
have sent its data and gone on, and torch.distributed may begin a call without waiting for it (``async_op``). If no data
is on its way any more and the call does not end, at least one member that is outside has not entered. So a call waits
for any of these, and for each of them only where no member can enter without waiting and leave before the others.

That no data is on its way is seen: the waiter's thread does not run between two samples (``GroupCall.mark``), and its
process uses hardly any CPU time meanwhile, so its library receives and sends nothing.
"""
