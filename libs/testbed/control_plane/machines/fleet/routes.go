package fleet

import (
	"net/netip"

	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
)

// Route is one RouteStatus of the kernel's unicast routes; without a destination it is a default route.
type Route struct {
	Gateway     string `json:"gateway"`
	Destination string `json:"destination"`
	Link        string `json:"link"`
	LinkIndex   uint32 `json:"link_index"`
	Table       string `json:"table"`
	Priority    uint32 `json:"priority"`
	IPv6        bool   `json:"ipv6"`
}

func (r *Route) status() (owned, error) {
	var (
		gateway     netip.Addr
		destination netip.Prefix
		err         error
	)
	if r.Gateway != "" {
		if gateway, err = netip.ParseAddr(r.Gateway); err != nil {
			return owned{}, err
		}
	}
	if r.Destination != "" {
		if destination, err = netip.ParsePrefix(r.Destination); err != nil {
			return owned{}, err
		}
	}
	table, err := nethelpers.RoutingTableString(r.Table)
	if err != nil {
		return owned{}, err
	}
	family := nethelpers.FamilyInet4
	if r.IPv6 {
		family = nethelpers.FamilyInet6
	}
	id := network.RouteID(table, family, destination, gateway, r.Priority, r.Link)
	status := network.NewRouteStatus(network.NamespaceName, id)
	*status.TypedSpec() = network.RouteStatusSpec{
		Family: family, Destination: destination, Gateway: gateway, OutLinkIndex: r.LinkIndex, OutLinkName: r.Link,
		Table: table, Priority: r.Priority, Scope: nethelpers.ScopeGlobal, Type: nethelpers.TypeUnicast,
		Protocol: nethelpers.ProtocolStatic,
	}
	return owned{status, "network.RouteStatusController"}, nil
}
