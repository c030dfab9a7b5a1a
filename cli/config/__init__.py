"""`talos-ccm config`: the --cloud-config file, judged before a cluster runs it."""
