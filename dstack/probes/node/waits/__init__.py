"""The known waits, and what they wait on: locks, executors, channels, and objects that other threads reach."""
