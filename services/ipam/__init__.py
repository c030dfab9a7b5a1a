"""Gives Nodes their pod CIDRs: from pools, claimed in Kubernetes first, never one twice."""
