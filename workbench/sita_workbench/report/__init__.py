"""What a benchmark leaves behind: tables, figures, a page."""
