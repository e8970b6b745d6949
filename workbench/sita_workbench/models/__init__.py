"""Models by name or from a file, with their weights."""
