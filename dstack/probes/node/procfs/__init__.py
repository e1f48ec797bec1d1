"""What the kernel shows of processes: /proc, children, permissions, open files, and what raylets start."""
