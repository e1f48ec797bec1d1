"""What waits without running: calls, actors and placement groups, and queued calls."""
