"""Simulated Talos machines in one Python process: `control_plane/machines` without Go."""
