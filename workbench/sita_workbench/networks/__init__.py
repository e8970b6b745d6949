"""Networks and data of our own experiments."""
