"""What the node and its processes use: CPU, disks and GPUs."""
