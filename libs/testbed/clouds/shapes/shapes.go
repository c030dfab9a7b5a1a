// Package shapes compares the documents of a simulated API with the types of a cloud's own Go module.
package shapes

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// Differences are the fields that only the answers or only the types have.
type Differences map[string]bool

// Sorted returns them in order, never nil: null in JSON would be no answer.
func (d Differences) Sorted() []string {
	return append([]string{}, slices.Sorted(maps.Keys(d))...)
}

// Compare decodes the body into the type, encodes that again, and adds where the two differ. It returns the
// document that was sent, nil if it is none. Names of fields are compared as Go decodes them, in any case.
func (d Differences) Compare(where string, body []byte, into any, ignored ...string) any {
	var sent, kept any
	err := json.NewDecoder(bytes.NewReader(body)).Decode(into)
	if err == nil {
		var again []byte
		if again, err = json.Marshal(into); err == nil {
			err = json.Unmarshal(again, &kept)
		}
	}
	if err == nil {
		err = json.Unmarshal(body, &sent)
	}
	if err != nil {
		d[where+": "+err.Error()] = true
		return nil
	}
	document := sent
	if object, isObject := sent.(map[string]any); isObject {
		object = maps.Clone(object)
		for _, name := range ignored {
			delete(object, name)
		}
		document = object
	}
	d.compare(where, document, kept)
	return sent
}

// compare collects the fields that only one of two documents has; values are not compared.
func (d Differences) compare(where string, sent, kept any) {
	switch sent := sent.(type) {
	case map[string]any:
		kept, _ := kept.(map[string]any)
		known := map[string]any{}
		for name, value := range kept {
			known[strings.ToLower(name)] = value
		}
		for name, value := range sent {
			if other, is := known[strings.ToLower(name)]; is {
				d.compare(where+"."+name, value, other)
				delete(known, strings.ToLower(name))
			} else {
				d[where+"."+name+": not in the type"] = true
			}
		}
		for name := range known {
			d[where+"."+name+": not in the answer"] = true
		}
	case []any:
		kept, _ := kept.([]any)
		for i := range min(len(sent), len(kept)) {
			d.compare(where, sent[i], kept[i])
		}
	}
}
