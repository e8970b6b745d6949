"""The images that a benchmark runs on."""
