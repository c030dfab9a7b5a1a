"""Publishes the state of Nodes and CSRs, their deletions, complete snapshots and leader heartbeats."""
