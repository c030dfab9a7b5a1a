module talos-ccm/testbed/openstack-client

go 1.26.0

require github.com/gophercloud/gophercloud/v2 v2.16.0
