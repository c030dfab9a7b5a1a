package main

import (
	"net/netip"

	"github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/siderolabs/talos/pkg/machinery/nethelpers"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/siderolabs/talos/pkg/machinery/resources/runtime"
	"google.golang.org/protobuf/encoding/protowire"
)

// broken is what no Talos would send.
func broken() []Sample {
	good := func() *v1alpha1.Resource {
		return platform(runtime.PlatformMetadataSpec{Platform: "aws", ProviderID: "aws:///us-east-1a/i-0abc"})
	}
	whole := get(good())
	otherType, otherID, otherNamespace, noMetadata := good(), good(), good(), good()
	otherType.Metadata.Type = "AddressStatuses.net.talos.dev"
	otherID.Metadata.Id = "somethingelse"
	otherNamespace.Metadata.Namespace = "network"
	noMetadata.Metadata = nil
	cutSpec, wrongWire, group := good(), good(), good()
	cutSpec.Spec.ProtoSpec = cutSpec.Spec.ProtoSpec[:len(cutSpec.Spec.ProtoSpec)-3]
	wrongWire.Spec.ProtoSpec = protowire.AppendVarint(protowire.AppendTag(nil, 7, protowire.VarintType), 12)
	group.Spec.ProtoSpec = protowire.AppendTag(nil, 7, protowire.StartGroupType)
	long := platform(runtime.PlatformMetadataSpec{Platform: "aws", ProviderID: string(make([]byte, 2000))})

	sample := func(name, reads string, message []byte) Sample {
		return Sample{Name: name, Reads: reads, Message: message, Invalid: true}
	}
	samples := []Sample{
		sample("nothing", "platform", []byte{}),
		sample("no resource", "platform", get(nil)),
		sample("no metadata", "platform", get(noMetadata)),
		sample("another type", "platform", get(otherType)),
		sample("another id", "platform", get(otherID)),
		sample("another namespace", "platform", get(otherNamespace)),
		sample("a spec that is cut off", "platform", get(cutSpec)),
		sample("a number where a text belongs", "platform", get(wrongWire)),
		sample("a group, which proto3 does not have", "platform", get(group)),
		sample("a text that is too long", "platform", get(long)),
		sample("truncated to one byte", "platform", whole[:1]),
		sample("truncated in the middle", "platform", whole[:len(whole)/2]),
		sample("truncated by one byte", "platform", whole[:len(whole)-1]),
		sample("all ones", "platform", []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}),
		sample("all ones", "watch", []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}),
		sample("a length of an exabyte", "platform", []byte{0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f}),
	}
	return append(samples, brokenAddresses(sample)...)
}

func brokenAddresses(sample func(name, reads string, message []byte) Sample) []Sample {
	prefixed := func(ip []byte, length int64) []byte {
		r := address("eth0/10.0.0.5/24", network.AddressStatusSpec{
			Address: netip.MustParsePrefix("10.0.0.5/24"), LinkName: "eth0",
			Family: nethelpers.FamilyInet4, Scope: nethelpers.ScopeGlobal,
		})
		prefix := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), ip)
		prefix = protowire.AppendVarint(protowire.AppendTag(prefix, 2, protowire.VarintType), uint64(length))
		r.Spec.ProtoSpec = protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), prefix)
		return list(r)
	}
	return []Sample{
		sample("five bytes of address", "address", prefixed([]byte{10, 0, 0, 5, 1}, 24)),
		sample("IPv4 with a prefix of 33", "address", prefixed([]byte{10, 0, 0, 5}, 33)),
		sample("IPv4 with a prefix of -1", "address", prefixed([]byte{10, 0, 0, 5}, -1)),
		sample("IPv6 with a prefix of 129", "address", prefixed(make([]byte, 16), 129)),
		sample("a prefix with a zone", "address", prefixed(append(make([]byte, 16), "eth0"...), 64)),
	}
}
