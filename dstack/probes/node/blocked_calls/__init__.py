"""The call that each thread is blocked in, with its dependencies."""
