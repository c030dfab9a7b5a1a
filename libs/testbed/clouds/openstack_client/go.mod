module talos-ccm/testbed/openstack-client

go 1.26.0

replace talos-ccm/testbed/peer => ../peer

require (
	github.com/gophercloud/gophercloud/v2 v2.16.0
	talos-ccm/testbed/peer v0.0.0
)
