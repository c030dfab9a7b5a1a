// Command generate writes what Talos machines send, byte by byte, with what it means.
//
// Every resource is made by Talos's own Go types, encoded by COSI's own encoder and wrapped in COSI's own messages.
// The types and the encoder are those of Talos 1.13, or with `-modfile=talos-1.11.mod -tags talos111` those of 1.11,
// whose encoder writes zero values too.
package main

import (
	"encoding/json"
	"flag"
	"log"
	"os"
	"time"

	"github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Sample is one message. Want is null where the bytes say that nothing is set; Invalid means that no Talos would send it.
type Sample struct {
	Name    string `json:"name"`
	Reads   string `json:"reads"` // platform, system, address, nodename, cluster_name, cluster_networks, watch, or a part of the inventory
	Message []byte `json:"message"`
	Want    any    `json:"want"`
	Invalid bool   `json:"invalid,omitempty"`
}

var ordered = proto.MarshalOptions{Deterministic: true}

func main() {
	talos := flag.String("talos", "", "the version to name in the output")
	flag.Parse()
	output := json.NewEncoder(os.Stdout)
	output.SetIndent("", " ")
	if err := output.Encode(struct {
		Talos   string   `json:"talos"`
		Samples []Sample `json:"samples"`
	}{*talos, samples()}); err != nil {
		log.Fatal(err)
	}
}

func samples() []Sample {
	all := append(facts(), events()...)
	return append(all, broken()...)
}

// wire is the resource as COSI's server sends it: with the protobuf and the YAML form of the spec.
func wire(r resource.Resource) *v1alpha1.Resource {
	r.Metadata().SetCreated(time.Unix(1700000000, 0)) // the output is the same each time
	r.Metadata().SetUpdated(time.Unix(1700000123, 456789000))
	r.Metadata().SetVersion(must(resource.ParseVersion("3")))
	if err := r.Metadata().SetOwner("tests.SampleController"); err != nil {
		log.Fatal(err)
	}
	return must(must(protobuf.FromResource(r)).Marshal())
}

func get(r *v1alpha1.Resource) []byte {
	return must(ordered.Marshal(&v1alpha1.GetResponse{Resource: r}))
}

func list(r *v1alpha1.Resource) []byte {
	return must(ordered.Marshal(&v1alpha1.ListResponse{Resource: r}))
}

// withUnknown is the resource with fields in its spec that this version does not know, one of each wire type.
func withUnknown(r *v1alpha1.Resource) *v1alpha1.Resource {
	spec := protowire.AppendTag(r.Spec.ProtoSpec, 900, protowire.VarintType)
	spec = protowire.AppendVarint(spec, 1<<60)
	spec = protowire.AppendTag(spec, 901, protowire.BytesType)
	spec = protowire.AppendBytes(spec, []byte("from a Talos to come"))
	spec = protowire.AppendTag(spec, 902, protowire.Fixed32Type)
	spec = protowire.AppendFixed32(spec, 7)
	spec = protowire.AppendTag(spec, 903, protowire.Fixed64Type)
	r.Spec.ProtoSpec = protowire.AppendFixed64(spec, 7)
	return r
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}
