"""`talos-ccm demo`: simulated Talos nodes join a real or simulated cluster on this machine."""
