package fleet

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	talosmachine "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/extensions"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

// Extension is one ExtensionStatus.
type Extension struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Processor is one SMBIOS socket, populated or not.
type Processor struct {
	Socket       string `json:"socket"`
	Manufacturer string `json:"manufacturer"`
	ProductName  string `json:"product_name"`
	BootSpeed    uint32 `json:"boot_speed"`
	CoreCount    uint32 `json:"core_count"`
	CoreEnabled  uint32 `json:"core_enabled"`
	ThreadCount  uint32 `json:"thread_count"`
}

// MemoryModule is one SMBIOS memory slot, populated or not.
type MemoryModule struct {
	Locator      string `json:"locator"`
	Size         uint32 `json:"size"`
	Manufacturer string `json:"manufacturer"`
}

// inventory returns the resources that only a reboot can change.
func (f *Facts) inventory() []owned {
	var resources []owned
	for number, e := range f.Extensions {
		status := runtime.NewExtensionStatus(runtime.NamespaceName, strconv.Itoa(number))
		*status.TypedSpec() = runtime.ExtensionStatusSpec{
			Image: fmt.Sprintf("%03d.sqsh", number), Metadata: extensions.Metadata{Name: e.Name, Version: e.Version},
		}
		resources = append(resources, owned{status, "runtime.ExtensionStatusController"})
	}
	for _, p := range f.Processors {
		processor := hardware.NewProcessorInfo(strings.ReplaceAll(p.Socket, " ", "-"))
		*processor.TypedSpec() = hardware.ProcessorSpec{
			Socket: p.Socket, Manufacturer: p.Manufacturer, ProductName: p.ProductName, BootSpeed: p.BootSpeed,
			CoreCount: p.CoreCount, CoreEnabled: p.CoreEnabled, ThreadCount: p.ThreadCount,
		}
		resources = append(resources, owned{processor, "hardware.SystemInfoController"})
	}
	for _, m := range f.MemoryModules {
		module := hardware.NewMemoryModuleInfo(strings.ReplaceAll(m.Locator, " ", "-"))
		*module.TypedSpec() = hardware.MemoryModuleSpec{Size: m.Size, DeviceLocator: m.Locator, Manufacturer: m.Manufacturer}
		resources = append(resources, owned{module, "hardware.SystemInfoController"})
	}
	return resources
}

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

// Member is a machine of the cluster, as the discovery service reports it.
type Member struct {
	Name            string   `json:"name"`
	NodeID          string   `json:"node_id"`
	Hostname        string   `json:"hostname"`
	Addresses       []string `json:"addresses"`
	ControlPlane    bool     `json:"control_plane"`
	OperatingSystem string   `json:"operating_system"`
}

// lifecycle returns the MachineStatus and the discovered Members.
func (f *Facts) lifecycle() ([]owned, error) {
	var resources []owned
	if f.Stage != "" {
		stage, err := runtime.MachineStageString(f.Stage)
		if err != nil {
			return nil, err
		}
		status := runtime.NewMachineStatus()
		status.TypedSpec().Stage = stage
		status.TypedSpec().Status.Ready = stage == runtime.MachineStageRunning
		resources = append(resources, owned{status, "runtime.MachineStatusController"})
	}
	for _, m := range f.Members {
		member, err := m.member()
		if err != nil {
			return nil, err
		}
		resources = append(resources, member)
	}
	return resources, nil
}

func (m *Member) member() (owned, error) {
	if m.Name == "" {
		return owned{}, fmt.Errorf("a member needs a name")
	}
	member := cluster.NewMember(cluster.NamespaceName, m.Name)
	spec := member.TypedSpec()
	spec.NodeID, spec.Hostname, spec.OperatingSystem = m.NodeID, m.Hostname, m.OperatingSystem
	spec.MachineType = talosmachine.TypeWorker
	if m.ControlPlane {
		spec.MachineType = talosmachine.TypeControlPlane
	}
	for _, text := range m.Addresses {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return owned{}, err
		}
		spec.Addresses = append(spec.Addresses, address)
	}
	return owned{member, "cluster.MemberController"}, nil
}
