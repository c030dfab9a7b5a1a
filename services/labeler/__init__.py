"""Initializes Nodes: sets labels, addresses, providerID and taints, and reports why a Node is blocked."""
