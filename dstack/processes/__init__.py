"""Child processes, signals and interruption of this process."""
