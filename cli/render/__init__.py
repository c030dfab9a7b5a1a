"""`talos-ccm render`: what the rules of a config file would do, before they do it."""
