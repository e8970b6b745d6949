"""Networks and images for experiments."""
