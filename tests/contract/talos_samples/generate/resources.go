package main

import (
	"net/netip"

	"github.com/cosi-project/runtime/api/v1alpha1"
	talosmachine "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/extensions"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

// events are WatchResponses; wanted is the number of changes that they tell of.
func events() []Sample {
	sample := func(name string, want int, events ...*v1alpha1.Event) Sample {
		message := must(ordered.Marshal(&v1alpha1.WatchResponse{Event: events}))
		return Sample{Name: name, Reads: "watch", Message: message, Want: want}
	}
	before := platform(runtime.PlatformMetadataSpec{Platform: "hcloud"})
	after := platform(runtime.PlatformMetadataSpec{Platform: "hcloud", ProviderID: "hcloud://1"})
	gone := network.NewAddressStatus(network.NamespaceName, "eth0/10.0.0.5/24")
	tombstone := wire(gone)
	tombstone.Spec = &v1alpha1.Spec{}
	created := &v1alpha1.Event{EventType: v1alpha1.EventType_CREATED, Resource: before}
	reason := "buffer overrun: namespace \"network\" capacity 1024"
	return []Sample{
		sample("the first message is empty", 0),
		sample("created", 1, created),
		sample("updated", 1, &v1alpha1.Event{EventType: v1alpha1.EventType_UPDATED, Resource: after, Old: before}),
		sample("only the version is another", 0, &v1alpha1.Event{EventType: v1alpha1.EventType_UPDATED, Resource: after, Old: after}),
		sample("an update without the old resource", 1, &v1alpha1.Event{EventType: v1alpha1.EventType_UPDATED, Resource: after}),
		sample("destroyed, a tombstone", 1, &v1alpha1.Event{EventType: v1alpha1.EventType_DESTROYED, Resource: tombstone}),
		sample("bootstrapped, with a bookmark", 0, &v1alpha1.Event{EventType: v1alpha1.EventType_BOOTSTRAPPED, Bookmark: make([]byte, 16)}),
		sample("noop", 0, &v1alpha1.Event{EventType: v1alpha1.EventType_NOOP, Bookmark: make([]byte, 16)}),
		sample("an event type to come", 0, &v1alpha1.Event{EventType: 17}),
		sample("three at once", 2, created, &v1alpha1.Event{EventType: v1alpha1.EventType_NOOP}, created),
		{
			Name: "errored", Reads: "watch", Want: reason, Message: must(ordered.Marshal(&v1alpha1.WatchResponse{
				Event: []*v1alpha1.Event{{EventType: v1alpha1.EventType_ERRORED, Error: &reason}},
			})),
		},
	}
}

func route(spec network.RouteStatusSpec) *v1alpha1.Resource {
	id := network.RouteID(spec.Table, spec.Family, spec.Destination, spec.Gateway, spec.Priority, spec.OutLinkName)
	r := network.NewRouteStatus(network.NamespaceName, id)
	*r.TypedSpec() = spec
	return wire(r)
}

func routes() []Sample {
	static := func(family nethelpers.Family, gateway string) network.RouteStatusSpec {
		return network.RouteStatusSpec{
			Family: family, Gateway: netip.MustParseAddr(gateway), OutLinkIndex: 2, OutLinkName: "eth0", Table: nethelpers.TableMain,
			Priority: 1024, Scope: nethelpers.ScopeGlobal, Type: nethelpers.TypeUnicast, Protocol: nethelpers.ProtocolDHCP, MTU: 1500,
		}
	}
	onLink := static(nethelpers.FamilyInet4, "10.0.0.1")
	onLink.Gateway, onLink.Source = netip.Addr{}, netip.MustParseAddr("10.0.0.5")
	onLink.Destination, onLink.Scope = netip.MustParsePrefix("10.0.0.0/24"), nethelpers.ScopeLink
	prefixed := static(nethelpers.FamilyInet6, "2001:db8::ff")
	prefixed.Destination = netip.MustParsePrefix("2001:db8:1::/48")
	sample := func(name string, r *v1alpha1.Resource, want ...string) Sample {
		return Sample{Name: name, Reads: "RouteStatus", Message: list(r), Want: append([]string{}, want...)}
	}
	return []Sample{
		sample("a default route", route(static(nethelpers.FamilyInet4, "10.0.0.1")), "10.0.0.1"),
		sample("a default route of a link", route(static(nethelpers.FamilyInet6, "fe80::1%eth0"))),
		sample("a route to a network", route(prefixed), "2001:db8::ff"),
		sample("a route without a gateway", route(onLink)),
		sample("zero value", route(network.RouteStatusSpec{})),
		sample("fields of a later Talos", withUnknown(route(static(nethelpers.FamilyInet4, "10.0.0.1"))), "10.0.0.1"),
	}
}

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
