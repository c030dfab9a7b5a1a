"""The programs that deploy/compose runs beside the real servers: credentials, Talos machines, kubelets."""
