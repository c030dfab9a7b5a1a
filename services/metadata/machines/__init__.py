"""Queries of machines, and what the answers prove about a Node. The command `talos-ccm` uses it too."""
