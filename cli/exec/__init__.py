"""Runs `talos-ccm` in a pod of a service."""
