// Patches machine configs as talosctl does, with Talos' own code: generate, patch, read again, validate.
//
//	talos_config controlplane v1.13 patch.yaml ...
//
// prints the patched config; Talos' warnings and refusals go to stderr, and a refusal ends it with status 1.
package main

import (
	"fmt"
	"os"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/config/encoder"
	"github.com/siderolabs/talos/pkg/machinery/config/generate"
	"github.com/siderolabs/talos/pkg/machinery/config/machine"
)

// A place to install to, which every config needs and no patch of ours has.
const disk = "/dev/sda"

// metal is the mode of a machine that is installed from this config.
type metal struct{}

func (metal) String() string        { return "metal" }
func (metal) RequiresInstall() bool { return true }
func (metal) InContainer() bool     { return false }

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: talos_config controlplane|worker v1.N [patch.yaml ...]")
		os.Exit(2)
	}

	patched, warnings, err := patch(os.Args[1], os.Args[2], os.Args[3:])
	for _, warning := range warnings {
		fmt.Fprintln(os.Stderr, "warning:", warning)
	}

	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}

	os.Stdout.Write(patched)
}

func patch(role, contract string, files []string) ([]byte, []string, error) {
	generated, err := generated(role, contract)
	if err != nil {
		return nil, nil, err
	}

	texts := make([]string, len(files))
	for i, file := range files {
		texts[i] = "@" + file
	}

	patches, err := configpatcher.LoadPatches(texts)
	if err != nil {
		return nil, nil, err
	}

	applied, err := configpatcher.Apply(configpatcher.WithConfig(generated), patches)
	if err != nil {
		return nil, nil, err
	}

	bytes, err := applied.Bytes()
	if err != nil {
		return nil, nil, err
	}

	read, err := configloader.NewFromBytes(bytes)
	if err != nil {
		return nil, nil, err
	}

	warnings, err := read.Validate(metal{})

	return bytes, warnings, err
}

func generated(role, contract string) (config.Provider, error) {
	version, err := config.ParseContractFromVersion(contract)
	if err != nil {
		return nil, err
	}

	kind, err := machine.ParseType(role)
	if err != nil {
		return nil, err
	}

	input, err := generate.NewInput("example", "https://192.0.2.1:6443", kubernetes[contract],
		generate.WithVersionContract(version), generate.WithInstallDisk(disk))
	if err != nil {
		return nil, err
	}

	made, err := input.Config(kind)
	if err != nil {
		return nil, err
	}

	bytes, err := made.EncodeBytes(encoder.WithComments(encoder.CommentsDisabled))
	if err != nil {
		return nil, err
	}

	return configloader.NewFromBytes(bytes)
}

// What each Talos installs if nobody says otherwise.
var kubernetes = map[string]string{"v1.11": "1.34.0", "v1.12": "1.35.0", "v1.13": "1.36.0"}
