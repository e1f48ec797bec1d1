"""The view of stacks, process by process or merged."""
