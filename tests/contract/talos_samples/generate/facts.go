package main

import (
	"net/netip"

	"github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/resources/cluster"
	"github.com/siderolabs/talos/pkg/machinery/resources/hardware"
	"github.com/siderolabs/talos/pkg/machinery/resources/k8s"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
)

type object = map[string]any

func facts() []Sample {
	all := append(platforms(), systems()...)
	all = append(all, addresses()...)
	all = append(all, inventory()...)
	return append(all, others()...)
}

func platform(spec runtime.PlatformMetadataSpec) *v1alpha1.Resource {
	r := runtime.NewPlatformMetadataSpec(runtime.NamespaceName, runtime.PlatformMetadataID)
	*r.TypedSpec() = spec
	return wire(r)
}

func platforms() []Sample {
	full := runtime.PlatformMetadataSpec{
		Platform: "aws", Hostname: "ip-10-0-0-5.ec2.internal", Region: "us-east-1", Zone: "us-east-1a", InstanceType: "m5.large",
		InstanceID: "i-0abc", ProviderID: "aws:///us-east-1a/i-0abc", Spot: true,
		InternalDNS: "ip-10-0-0-5.ec2.internal", ExternalDNS: "ec2-203-0-113-5.compute.example",
		Tags: map[string]string{"Name": "wärbö 雪", "empty": ""},
	}
	want := func(s runtime.PlatformMetadataSpec) object {
		tags := s.Tags
		if tags == nil {
			tags = map[string]string{}
		}
		return object{
			"platform": s.Platform, "hostname": s.Hostname, "region": s.Region, "zone": s.Zone, "instance_type": s.InstanceType,
			"instance_id": s.InstanceID, "provider_id": s.ProviderID, "spot": s.Spot,
			"internal_dns": s.InternalDNS, "external_dns": s.ExternalDNS, "tags": tags,
		}
	}
	early := runtime.PlatformMetadataSpec{Platform: "hcloud"}
	return []Sample{
		{Name: "every field, with tags (1.10+)", Reads: "platform", Message: get(platform(full)), Want: want(full)},
		{Name: "only the platform, before the cloud answered", Reads: "platform", Message: get(platform(early)), Want: want(early)},
		{Name: "zero value", Reads: "platform", Message: get(platform(runtime.PlatformMetadataSpec{})), Want: want(runtime.PlatformMetadataSpec{})},
		{Name: "fields of a later Talos", Reads: "platform", Message: get(withUnknown(platform(full))), Want: want(full)},
	}
}

func systems() []Sample {
	system := func(spec hardware.SystemInformationSpec) *v1alpha1.Resource {
		r := hardware.NewSystemInformation(hardware.SystemInformationID)
		*r.TypedSpec() = spec
		return wire(r)
	}
	want := func(s hardware.SystemInformationSpec) object {
		return object{
			"manufacturer": s.Manufacturer, "product_name": s.ProductName, "version": s.Version, "serial_number": s.SerialNumber,
			"uuid": s.UUID, "wake_up_type": s.WakeUpType, "sku_number": s.SKUNumber,
		}
	}
	full := hardware.SystemInformationSpec{
		Manufacturer: "QEMU", ProductName: "Standard PC (i440FX + PIIX, 1996)", Version: "pc-i440fx-9.0", SerialNumber: "0",
		UUID: "9f6d0fb6-0a0e-4f0b-8f6e-7d2f3f0a5f11", WakeUpType: "Power Switch", SKUNumber: "sku",
	}
	raw := full
	raw.SerialNumber = "\xff\xff\xfe" // what some vendors leave there
	read := raw
	read.SerialNumber = "\ufffd\ufffd\ufffd"
	return []Sample{
		{Name: "every field", Reads: "system", Message: get(system(full)), Want: want(full)},
		{Name: "zero value", Reads: "system", Message: get(system(hardware.SystemInformationSpec{})), Want: want(hardware.SystemInformationSpec{})},
		{Name: "fields of a later Talos", Reads: "system", Message: get(withUnknown(system(full))), Want: want(full)},
		{Name: "a serial number that is not UTF-8", Reads: "system", Message: get(withoutYAML(system(raw))), Want: want(read)},
	}
}

// withoutYAML: a YAML text that is not UTF-8 would not be a protobuf string, so Go refuses to send it.
func withoutYAML(r *v1alpha1.Resource) *v1alpha1.Resource {
	r.Spec.YamlSpec = ""
	return r
}

func address(id string, spec network.AddressStatusSpec) *v1alpha1.Resource {
	r := network.NewAddressStatus(network.NamespaceName, id)
	*r.TypedSpec() = spec
	return wire(r)
}

func addresses() []Sample {
	on := func(link, prefix string) network.AddressStatusSpec {
		parsed := netip.MustParsePrefix(prefix)
		family := nethelpers.FamilyInet6
		if parsed.Addr().Is4() {
			family = nethelpers.FamilyInet4
		}
		return network.AddressStatusSpec{
			Address: parsed, LinkName: link, LinkIndex: 2, Family: family, Scope: nethelpers.ScopeGlobal,
			Flags: nethelpers.AddressFlags(nethelpers.AddressPermanent),
		}
	}
	sample := func(name string, spec network.AddressStatusSpec) Sample {
		id := network.AddressID(spec.LinkName, spec.Address)
		return Sample{Name: name, Reads: "address", Message: list(address(id, spec)), Want: object{
			"address": spec.Address.String(), "link": spec.LinkName, "scope": int(spec.Scope), "flags": uint32(spec.Flags),
		}}
	}
	v4 := on("eth0", "10.0.0.5/24")
	v4.Local = netip.MustParseAddr("10.0.0.5")
	v4.Broadcast = netip.MustParseAddr("10.0.0.255")
	v4.Priority = 1024
	temporary := on("eth0", "2001:db8::5/64")
	temporary.Flags = nethelpers.AddressFlags(nethelpers.AddressTemporary | nethelpers.AddressDeprecated)
	zoned := on("eth0", "fe80::1/64")
	zoned.Local = netip.MustParseAddr("fe80::1%eth0")
	zoned.Scope = nethelpers.ScopeLink
	loopback := on("lo", "127.0.0.1/8")
	loopback.Scope = nethelpers.ScopeHost
	external := on("external", "203.0.113.7/32")
	external.LinkIndex, external.Flags = 0, 0
	unset := Sample{Name: "a prefix that is not set", Reads: "address", Want: nil}
	unset.Message = list(address("eth0/unset", network.AddressStatusSpec{
		LinkName: "eth0", Family: nethelpers.FamilyInet4, Scope: nethelpers.ScopeGlobal,
	}))
	return []Sample{
		sample("IPv4 with all its fields", v4),
		sample("IPv6", on("eth0", "2001:db8::5/64")),
		sample("IPv6, temporary and deprecated", temporary),
		sample("IPv6 whose local address has a zone", zoned),
		sample("IPv4-mapped IPv6", on("eth0", "::ffff:10.0.0.5/120")),
		sample("scope host", loopback),
		sample("from cloud metadata", external),
		sample("the default prefix", on("tun0", "0.0.0.0/0")),
		{
			Name: "fields of a later Talos", Reads: "address",
			Message: list(withUnknown(address("eth0/10.0.0.5/24", v4))), Want: sample("", v4).Want,
		},
		unset,
	}
}

func others() []Sample {
	name := func(spec k8s.NodenameSpec) []byte {
		r := k8s.NewNodename(k8s.NamespaceName, k8s.NodenameID)
		*r.TypedSpec() = spec
		return get(wire(r))
	}
	info := cluster.NewInfo()
	*info.TypedSpec() = cluster.InfoSpec{ClusterID: "q5vZ0Vh0Qb8vYyq1nS0cKJrW2dTn3m1xXgqP6yLh8a0=", ClusterName: "prod"}
	unnamed := cluster.NewInfo()
	manager := k8s.NewControllerManagerConfig()
	*manager.TypedSpec() = k8s.ControllerManagerConfigSpec{
		Enabled: true, Image: "registry.k8s.io/kube-controller-manager:v1.36.3", CloudProvider: "external",
		PodCIDRs: []string{"10.244.0.0/16", "fd00:10:244::/56"}, ServiceCIDRs: []string{"10.96.0.0/12"},
		ExtraArgs:            extraArgs(),
		EnvironmentVariables: map[string]string{"GODEBUG": ""},
		ExtraVolumes:         []k8s.ExtraVolume{{Name: "extra", HostPath: "/a", MountPath: "/b", ReadOnly: true}},
		Resources:            k8s.Resources{Requests: map[string]string{"cpu": "50m"}},
	}
	bare := k8s.NewControllerManagerConfig()
	networks := func(pods, services []string) object {
		return object{"pod_cidrs": pods, "service_cidrs": services, "node_cidr_mask_size_ipv4": nil, "node_cidr_mask_size_ipv6": nil}
	}
	return []Sample{
		{Name: "a name", Reads: "nodename", Message: name(k8s.NodenameSpec{Nodename: "web-1.example", HostnameVersion: "2"}), Want: "web-1.example"},
		{Name: "not known yet", Reads: "nodename", Message: name(k8s.NodenameSpec{}), Want: ""},
		{Name: "a cluster", Reads: "cluster_name", Message: get(wire(info)), Want: "prod"},
		{Name: "a cluster without a name", Reads: "cluster_name", Message: get(wire(unnamed)), Want: ""},
		{
			Name: "both families", Reads: "cluster_networks", Message: get(wire(manager)),
			Want: networks([]string{"10.244.0.0/16", "fd00:10:244::/56"}, []string{"10.96.0.0/12"}),
		},
		{Name: "zero value", Reads: "cluster_networks", Message: get(wire(bare)), Want: networks([]string{}, []string{})},
	}
}
