module talos-ccm/testbed/kubelets

go 1.26.2
