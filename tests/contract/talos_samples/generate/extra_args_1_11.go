//go:build talos111

package main

// extraArgs was another field with another type before Talos 1.13.
func extraArgs() map[string]string {
	return map[string]string{"controllers": "*,-node-ipam-controller"}
}
