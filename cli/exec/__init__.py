"""Runs `talos-ccm` where the services are."""
