package main

import (
	"maps"
	"reflect"
	"slices"
)

// Machine has the fields that rules see.
type Machine struct {
	Platform, Hostname, Region, Zone, InstanceType, InstanceID, ProviderID        string
	Spot                                                                          bool
	InternalDNS, ExternalDNS                                                      string
	Tags                                                                          map[string]string
	Manufacturer, ProductName, Version, SerialNumber, UUID, WakeUpType, SKUNumber string
}

// Values has a field of each kind.
type Values struct {
	Text, Blank, Markup, Unicode string
	Flag, Off                    bool
	Count, Zero, Negative, Big   int
	Tags, Words, None, NoTags    map[string]string
}

var sets = map[string]any{
	"values": Values{
		Text: "hello world", Markup: `a+b & <c> "d" 'e' f=g\h`, Unicode: "Grüße, 世界 ǆ İ ß\u00a0",
		Flag: true, Count: 3, Negative: -42, Big: 1 << 40,
		Tags:  map[string]string{"env": "prod", "b": "2", "a": "1", "none": ""},
		Words: map[string]string{"x": "alpha", "y": "beta", "z": "gamma"},
	},
	"hcloud": Machine{
		Platform: "hcloud", Hostname: "worker-7.example.com", Region: "eu-central", Zone: "fsn1-dc14", InstanceType: "cpx41",
		InstanceID: "33333333", ProviderID: "hcloud://33333333", Manufacturer: "Hetzner", ProductName: "vServer",
		Version: "20171111", SerialNumber: "33333333", UUID: "8d5b1f0e-4f2f-4b3e-9c3f-0123456789ab", WakeUpType: "Power Switch",
	},
	"aws": Machine{
		Platform: "aws", Hostname: "ip-10-0-3-17.eu-west-1.compute.internal", Region: "eu-west-1", Zone: "eu-west-1b",
		InstanceType: "m5.2xlarge", InstanceID: "i-0abc", ProviderID: "aws:///eu-west-1b/i-0abc", Spot: true,
		InternalDNS: "ip-10-0-3-17.eu-west-1.compute.internal", ExternalDNS: "ec2-1-2-3-4.compute.amazonaws.com",
		Tags: map[string]string{"team": "data & ml", "cost-center": "4711", "Name": "web"}, Manufacturer: "Amazon EC2",
	},
	"metal": Machine{
		Platform: "metal", Hostname: "node 1", Manufacturer: "QEMU", ProductName: "Standard PC (i440FX + PIIX, 1996)",
		Version: "pc-i440fx-9.0", SerialNumber: "h=1;i=1003;role=web=x;empty", UUID: "{{.Hostname}}", SKUNumber: `<"'&>`,
	},
	"nothing": Machine{},
}

// Set is one set of data with Go's types, so that it can be made again elsewhere.
type Set struct {
	Name string `json:"name"`
	Typed
}

// Typed is a value and its type; a struct's value is its fields in their order.
type Typed struct {
	Field string `json:"field,omitempty"`
	Type  string `json:"type"`
	Value any    `json:"value"`
}

func described() []Set {
	result := []Set{}
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		result = append(result, Set{name, typed("", reflect.ValueOf(sets[name]))})
	}
	return result
}

func typed(field string, value reflect.Value) Typed {
	result := Typed{field, value.Type().String(), value.Interface()}
	if value.Kind() == reflect.Struct {
		fields := []Typed{}
		for i := range value.NumField() {
			fields = append(fields, typed(value.Type().Field(i).Name, value.Field(i)))
		}
		result.Value = fields
	}
	return result
}
