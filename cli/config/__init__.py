"""`talos-ccm config`: checks of the --cloud-config file before a cluster uses it."""
