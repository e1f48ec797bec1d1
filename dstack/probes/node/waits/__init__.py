"""What waits wait on: locks, executors, and objects that other threads and coroutines reach."""
