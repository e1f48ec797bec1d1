"""Where processes wait in torch."""

from __future__ import annotations

from dstack.observed.call_site import Site, leaf, operations, site

DISTRIBUTED = "/torch/distributed/distributed_c10d.py"
RENDEZVOUS = "/torch/distributed/rendezvous.py"
FUNCTIONAL = "/torch/distributed/_functional_collectives.py"
BACKWARD = ("/torch/autograd/graph.py", "_engine_run_backward")
"""Below it, DistributedDataParallel waits in C++ for the collectives of its gradients."""
OPERATOR = ("/torch/_ops.py", "__call__")
SEEN, NOT_RUN = "torch 2.13 and 2.15, gloo", "torch's own names, not run"
LIBRARY = "torch.distributed"

CALLS = operations(
    DISTRIBUTED,
    """
    all_gather all_gather_coalesced all_gather_into_tensor all_gather_object all_reduce all_reduce_coalesced all_to_all
    all_to_all_single barrier batch_isend_irecv broadcast broadcast_object_list gather gather_object init_process_group
    irecv isend monitored_barrier new_group recv recv_object_list reduce reduce_scatter reduce_scatter_tensor scatter
    scatter_object_list send send_object_list split_group
    all_gather_single=all_gather_into_tensor _all_gather_base=all_gather_into_tensor
    reduce_scatter_single=reduce_scatter_tensor _reduce_scatter_base=reduce_scatter_tensor
    """,
    LIBRARY,
    SEEN,
    at="leaf or caller",
    polls=True,
)
"""They sleep on a futex with gloo, and poll in C++ with NCCL's blocking wait, which was not run."""

BACKWARD_WAIT = Site(
    "torch.distributed.backward", "collective of torch.distributed in a backward pass", timeout="none", library=LIBRARY
)
WORK_WAIT = Site("torch.distributed.Work.wait", "Work.wait of torch.distributed", timeout="unknown", library=LIBRARY)
"""Waits in C++ right below the caller's own frame, without a frame of torch."""

STORE = Site("torch.distributed.Store", "Store of torch.distributed", timeout="unknown", library=LIBRARY)
"""Waits in C++ right below the caller's own frame, too."""
STORE_START = Site(
    "torch.distributed.TCPStore", "TCPStore of torch.distributed", timeout="unknown", library=LIBRARY, polls=True
)
"""The constructor of a store, which sleeps between attempts."""

SITES = (
    *CALLS,
    *operations(
        DISTRIBUTED,
        "gather_into_tensor gather_single=gather_into_tensor",  # from torch 2.15 on, not with gloo
        LIBRARY,
        NOT_RUN,
        at="leaf or caller",
        polls=True,
    ),
    *operations(FUNCTIONAL, "wait_tensor", LIBRARY, SEEN, at="leaf or caller"),
    Site(
        "torch.distributed.start",
        "start of a process group of torch.distributed",
        (
            leaf(DISTRIBUTED, "_new_process_group_helper", SEEN),
            leaf(DISTRIBUTED, "_create_gloo_process_group", "torch 2.15, gloo"),
            leaf(DISTRIBUTED, "_create_nccl_process_group", NOT_RUN),
            leaf(DISTRIBUTED, "_store_based_barrier", SEEN),
            leaf(RENDEZVOUS, "_create_c10d_store", SEEN),
        ),
        polls=True,
    ),
    site(
        "torch.cuda.synchronize",
        leaf("/torch/cuda/__init__.py", "synchronize", NOT_RUN),
        leaf("/torch/cuda/streams.py", "synchronize", NOT_RUN),
        timeout="none",
    ),
    BACKWARD_WAIT,
    WORK_WAIT,
    STORE,
    STORE_START,
)
