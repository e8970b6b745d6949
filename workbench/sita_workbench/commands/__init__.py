"""The commands of `sita`, one file each. Each imports its libraries when it runs."""
