"""Exported files: checked when written, described by metadata, and run by the runtime of their format."""
