"""The kernel's view of processes: /proc, identity, children, permissions, and proof that a thread did not run."""
