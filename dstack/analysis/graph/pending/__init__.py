"""What waits without running: calls, actors and placement groups, queued calls, and runtime environments."""
