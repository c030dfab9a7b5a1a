"""Asks the Talos API what a machine is, and says it of the node (all facts of a node pass through here)."""
