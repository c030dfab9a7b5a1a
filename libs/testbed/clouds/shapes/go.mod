module talos-ccm/testbed/shapes

go 1.26.0
