"""Asks the cloud of one account about the instances of Nodes, and publishes what it answers."""
