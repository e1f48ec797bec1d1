"""Process groups of torch.distributed and ray.util.collective, read from the memory of their members."""
