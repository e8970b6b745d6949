"""The data sets of a benchmark."""
