"""The real control plane and Talos machines, built from two small Go modules."""
