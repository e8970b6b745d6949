"""The models that a benchmark runs, from whatever library."""
