"""Measurements on real parts; results as JSON and a table, never in a test."""
