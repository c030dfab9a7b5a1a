module talos-ccm/tests/go-templates

go 1.26.2
