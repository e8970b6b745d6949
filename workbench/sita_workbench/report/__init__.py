"""A benchmark's report: tables, figures, a page."""
