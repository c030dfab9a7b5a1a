"""Random pairs of faults on a real cluster, and an observer that checks the invariants."""
