"""The part of the Kubernetes API that we use, in memory; held to the contract tests of the real server."""
