"""`talos-ccm status`: the current state of the controller and of pod CIDRs."""
