"""The Nodes: one state and one reconciler for each, and the polls, watches and probes of their machines."""
