"""py-spy as a command and its output: for native frames, pauses, and processes that only it may read."""
