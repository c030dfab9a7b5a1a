module talos-ccm/testbed/thalassa-client

go 1.26.0

replace talos-ccm/testbed/peer => ../peer

require (
	github.com/thalassa-cloud/client-go v0.33.1
	talos-ccm/testbed/peer v0.0.0
)

require (
	github.com/go-resty/resty/v2 v2.17.2 // indirect
	github.com/gorilla/websocket v1.5.3 // indirect
	github.com/sony/gobreaker v1.0.0 // indirect
	golang.org/x/net v0.43.0 // indirect
	golang.org/x/oauth2 v0.36.0 // indirect
	golang.org/x/time v0.15.0 // indirect
)
