package main

import (
	"github.com/cosi-project/runtime/api/v1alpha1"
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
