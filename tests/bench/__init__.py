"""Benchmark on real servers; it prints tables and writes JSON, and no test runs it."""
