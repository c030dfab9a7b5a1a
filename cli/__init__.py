"""The operator's command `talos-ccm`."""
