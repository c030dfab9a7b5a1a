"""Deletes Nodes whose machine is proven to be gone, and tells of those that are shut down."""
