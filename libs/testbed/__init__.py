"""A cluster on one machine for the demo, tests and benchmarks: real servers that end with the run."""
