"""`talos-ccm status`: how something stands in a cluster now."""
