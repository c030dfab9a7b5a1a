"""`talos-ccm status ipam`: pools, pod CIDRs and conflicts."""
