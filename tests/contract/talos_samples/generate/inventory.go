package main

import (
	talosmachine "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/extensions"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

func inventory() []Sample {
	version := runtime.NewVersion()
	version.TypedSpec().Version = "v1.13.5"
	samples := []Sample{
		{Name: "a version", Reads: "Version", Message: get(wire(version)), Want: "v1.13.5"},
		{Name: "zero value", Reads: "Version", Message: get(wire(runtime.NewVersion())), Want: ""},
		{Name: "fields of a later Talos", Reads: "Version", Message: get(withUnknown(wire(version))), Want: "v1.13.5"},
	}
	for kind, want := range []string{"", "controlplane", "controlplane", "worker"} {
		machineType := config.NewMachineType()
		machineType.SetMachineType(talosmachine.Type(kind))
		samples = append(samples, Sample{
			Name: talosmachine.Type(kind).String(), Reads: "MachineType", Message: get(wire(machineType)), Want: want,
		})
	}
	return append(append(samples, lists()...), routes()...)
}

func lists() []Sample {
	extension := func(metadata extensions.Metadata) []byte {
		r := runtime.NewExtensionStatus(runtime.NamespaceName, "000.ghcr.io-siderolabs-x")
		*r.TypedSpec() = runtime.ExtensionStatusSpec{Image: "000.ghcr.io-siderolabs-x.sqsh", Metadata: metadata}
		return list(wire(r))
	}
	tools := extensions.Metadata{
		Name: "util-linux-tools", Version: "2.41.1", Author: "Sidero Labs", Description: "what it does",
		Compatibility: extensions.Compatibility{Talos: extensions.Constraint{Version: ">= v1.5.0"}}, ExtraInfo: "more",
	}
	processor := func(spec hardware.ProcessorSpec) []byte {
		r := hardware.NewProcessorInfo("CPU-0")
		*r.TypedSpec() = spec
		return list(wire(r))
	}
	epyc := hardware.ProcessorSpec{
		Socket: "CPU 0", Manufacturer: "AMD", ProductName: "EPYC 9354P", MaxSpeed: 3800, BootSpeed: 3250, Status: 65,
		SerialNumber: "Unknown", AssetTag: "Unknown", PartNumber: "Unknown", CoreCount: 32, CoreEnabled: 30, ThreadCount: 60,
	}
	unknown := epyc
	unknown.CoreEnabled = 0
	empty := hardware.ProcessorSpec{Socket: "CPU 0", Manufacturer: "AMD", MaxSpeed: 3800}
	module := hardware.NewMemoryModuleInfo("DIMM-0")
	*module.TypedSpec() = hardware.MemoryModuleSpec{
		Size: 32768, DeviceLocator: "DIMM 0", BankLocator: "BANK 0", Speed: 4800, Manufacturer: "Samsung",
		SerialNumber: "1", AssetTag: "2", ProductName: "M321R4GA3BB6",
	}
	want := func(sockets, cores, threads int, names ...string) object {
		return object{"manufacturer": names[0], "model": names[1], "sockets": sockets, "cores": cores, "threads": threads}
	}
	return []Sample{
		{Name: "an extension", Reads: "ExtensionStatus", Message: extension(tools), Want: object{"util-linux-tools": "2.41.1"}},
		{Name: "one without a name", Reads: "ExtensionStatus", Message: extension(extensions.Metadata{}), Want: object{}},
		{Name: "a processor", Reads: "Processor", Message: processor(epyc), Want: want(1, 30, 60, "AMD", "EPYC 9354P")},
		{Name: "all cores in use", Reads: "Processor", Message: processor(unknown), Want: want(1, 32, 60, "AMD", "EPYC 9354P")},
		{Name: "an empty socket", Reads: "Processor", Message: processor(empty), Want: want(0, 0, 0, "", "")},
		{Name: "a module", Reads: "MemoryModule", Message: list(wire(module)), Want: 32768},
		{Name: "an empty slot", Reads: "MemoryModule", Message: list(wire(hardware.NewMemoryModuleInfo("DIMM-1"))), Want: 0},
	}
}
