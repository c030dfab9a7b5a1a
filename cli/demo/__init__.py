"""`talos-ccm demo`: simulated Talos nodes join a real cluster on this machine and become usable."""
