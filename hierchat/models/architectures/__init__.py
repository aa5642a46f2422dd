"""What is known of each architecture that the CPU engine computes: one file each, listed in the registry."""
