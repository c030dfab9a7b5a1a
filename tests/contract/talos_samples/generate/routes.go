package main

import (
	"net/netip"

	"github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
)

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
