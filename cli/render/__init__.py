"""`talos-ccm render`: a preview of what the rules of a config file do."""
