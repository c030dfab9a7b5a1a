"""The adapter to the Talos API: the only package that uses gRPC and COSI."""
