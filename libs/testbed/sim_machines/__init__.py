"""Simulated Talos machines in one Python process: what `control_plane/machines` is, without Go."""
