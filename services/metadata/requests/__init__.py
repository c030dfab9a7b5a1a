"""The certificate requests of kubelets: one state and one reconciler for each, and the dials they need."""
