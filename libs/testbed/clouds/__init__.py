"""Simulated clouds, and clients of them that their makers wrote."""
