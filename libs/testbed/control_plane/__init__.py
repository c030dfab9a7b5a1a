"""The real control plane, Talos machines, kubelets and a cloud controller manager, built from Go modules."""
