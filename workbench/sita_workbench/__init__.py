"""The `sita` command. The library does not import it, and its names are not public."""
