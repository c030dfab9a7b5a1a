//go:build !talos111

package main

import "github.com/siderolabs/talos/pkg/machinery/resources/k8s"

func extraArgs() map[string]k8s.ArgValues {
	return map[string]k8s.ArgValues{"controllers": {Values: []string{"*", "-node-ipam-controller"}}}
}
