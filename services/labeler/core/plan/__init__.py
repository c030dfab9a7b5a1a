"""The plan for one Node: the pure difference between the Node and its desired state."""
