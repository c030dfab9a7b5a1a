package fleet

import (
	"fmt"
	"net/netip"

	"github.com/cosi-project/runtime/pkg/resource"
	talosmachine "github.com/siderolabs/talos/pkg/machinery/config/machine"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

// Facts describes one machine; an empty field is a resource that does not exist.
type Facts struct {
	ID                string             `json:"id"`
	Name              string             `json:"name"`
	ReachableAt       []string           `json:"reachable_at"`
	ControlPlane      bool               `json:"control_plane"`
	Hostname          string             `json:"hostname"`
	Domainname        string             `json:"domainname"`
	Platform          *Platform          `json:"platform"`
	SystemInformation *SystemInformation `json:"system_information"`
	Addresses         []Address          `json:"addresses"`
	PodCIDRs          []string           `json:"pod_cidrs"`
	ServiceCIDRs      []string           `json:"service_cidrs"`
	ClusterID         string             `json:"cluster_id"`
	ClusterName       string             `json:"cluster_name"`
	TalosVersion      string             `json:"talos_version"`
	Extensions        []Extension        `json:"extensions"`
	Processors        []Processor        `json:"processors"`
	MemoryModules     []MemoryModule     `json:"memory_modules"`
	Routes            []Route            `json:"routes"`
	Stage             string             `json:"stage"`
	Members           []Member           `json:"members"`
}

// Platform is the spec of PlatformMetadata.
type Platform struct {
	Platform     string            `json:"platform"`
	Hostname     string            `json:"hostname"`
	Region       string            `json:"region"`
	Zone         string            `json:"zone"`
	InstanceType string            `json:"instance_type"`
	InstanceID   string            `json:"instance_id"`
	ProviderID   string            `json:"provider_id"`
	Spot         bool              `json:"spot"`
	InternalDNS  string            `json:"internal_dns"`
	ExternalDNS  string            `json:"external_dns"`
	Tags         map[string]string `json:"tags"`
}

// SystemInformation are the SMBIOS facts that Talos publishes.
type SystemInformation struct {
	Manufacturer string `json:"manufacturer"`
	ProductName  string `json:"product_name"`
	Version      string `json:"version"`
	SerialNumber string `json:"serial_number"`
	UUID         string `json:"uuid"`
	SKUNumber    string `json:"sku_number"`
}

// Address is one AddressStatus. Namespace "cluster" is the address that the discovery service saw.
type Address struct {
	Address   string `json:"address"`
	Link      string `json:"link"`
	LinkIndex uint32 `json:"link_index"`
	Local     string `json:"local"`
	Scope     string `json:"scope"`
	Flags     uint32 `json:"flags"`
	Namespace string `json:"namespace"`
}

// owned is a resource with the Talos controller that owns it.
type owned struct {
	resource.Resource
	owner string
}

// Resources returns the resources of a machine with these facts.
func (f *Facts) Resources() ([]owned, error) {
	resources := f.identity()
	if f.Platform != nil {
		metadata := runtime.NewPlatformMetadataSpec(runtime.NamespaceName, runtime.PlatformMetadataID)
		*metadata.TypedSpec() = runtime.PlatformMetadataSpec(*f.Platform)
		resources = append(resources, owned{metadata, "network.PlatformConfigApplyController"})
	}
	if s := f.SystemInformation; s != nil {
		information := hardware.NewSystemInformation(hardware.SystemInformationID)
		*information.TypedSpec() = hardware.SystemInformationSpec{
			Manufacturer: s.Manufacturer, ProductName: s.ProductName, Version: s.Version,
			SerialNumber: s.SerialNumber, UUID: s.UUID, SKUNumber: s.SKUNumber,
		}
		resources = append(resources, owned{information, "hardware.SystemInfoController"})
	}
	resources = append(resources, f.inventory()...)
	for _, address := range f.Addresses {
		status, err := address.status()
		if err != nil {
			return nil, fmt.Errorf("machine %q: %w", f.ID, err)
		}
		resources = append(resources, status)
	}
	for _, route := range f.Routes {
		status, err := route.status()
		if err != nil {
			return nil, fmt.Errorf("machine %q: %w", f.ID, err)
		}
		resources = append(resources, status)
	}
	lifecycle, err := f.lifecycle()
	if err != nil {
		return nil, fmt.Errorf("machine %q: %w", f.ID, err)
	}
	return append(append(resources, f.cluster()...), lifecycle...), nil
}

func (f *Facts) identity() []owned {
	var resources []owned
	if f.Name != "" {
		nodename := k8s.NewNodename(k8s.NamespaceName, k8s.NodenameID)
		nodename.TypedSpec().Nodename = f.Name
		nodename.TypedSpec().HostnameVersion = "1"
		resources = append(resources, owned{nodename, "k8s.NodenameController"})
	}
	if f.Hostname != "" {
		hostname := network.NewHostnameStatus(network.NamespaceName, network.HostnameID)
		*hostname.TypedSpec() = network.HostnameStatusSpec{Hostname: f.Hostname, Domainname: f.Domainname}
		resources = append(resources, owned{hostname, "network.HostnameSpecController"})
	}
	if f.TalosVersion != "" {
		version := runtime.NewVersion()
		*version.TypedSpec() = runtime.VersionSpec{Name: "Talos", Version: f.TalosVersion}
		resources = append(resources, owned{version, "runtime.VersionController"})
	}
	machineType := config.NewMachineType()
	machineType.SetMachineType(talosmachine.TypeWorker)
	if f.ControlPlane {
		machineType.SetMachineType(talosmachine.TypeControlPlane)
	}
	return append(resources, owned{machineType, "config.MachineTypeController"})
}

func (f *Facts) cluster() []owned {
	var resources []owned
	if f.ClusterID != "" || f.ClusterName != "" {
		info := cluster.NewInfo()
		*info.TypedSpec() = cluster.InfoSpec{ClusterID: f.ClusterID, ClusterName: f.ClusterName}
		resources = append(resources, owned{info, "cluster.InfoController"})
	}
	if f.ControlPlane {
		manager := k8s.NewControllerManagerConfig()
		*manager.TypedSpec() = k8s.ControllerManagerConfigSpec{
			Enabled: true, CloudProvider: "external", PodCIDRs: f.PodCIDRs, ServiceCIDRs: f.ServiceCIDRs,
		}
		resources = append(resources, owned{manager, "k8s.ControlPlaneControllerManagerController"})
	}
	return resources
}

func (a *Address) status() (owned, error) {
	prefix, err := netip.ParsePrefix(a.Address)
	if err != nil {
		return owned{}, err
	}
	if a.Namespace == string(cluster.NamespaceName) {
		status := network.NewAddressStatus(cluster.NamespaceName, "service")
		status.TypedSpec().Address = prefix
		return owned{status, "cluster.DiscoveryServiceController"}, nil
	}
	scope, err := nethelpers.ScopeString(a.Scope)
	if err != nil {
		return owned{}, err
	}
	var local netip.Addr
	if a.Local != "" {
		if local, err = netip.ParseAddr(a.Local); err != nil {
			return owned{}, err
		}
	}
	family := nethelpers.FamilyInet6
	if prefix.Addr().Is4() {
		family = nethelpers.FamilyInet4
	}
	status := network.NewAddressStatus(network.NamespaceName, network.AddressID(a.Link, prefix))
	*status.TypedSpec() = network.AddressStatusSpec{
		Address: prefix, Local: local, LinkIndex: a.LinkIndex, LinkName: a.Link,
		Family: family, Scope: scope, Flags: nethelpers.AddressFlags(a.Flags),
	}
	return owned{status, "network.AddressStatusController"}, nil
}
