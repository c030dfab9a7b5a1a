"""A cluster on one machine for the demo, tests and benchmarks: real servers, dead when the run ends."""
