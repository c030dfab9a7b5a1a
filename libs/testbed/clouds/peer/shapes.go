package peer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Types make the values into which the answers with a list, and with one of its objects, are decoded.
type Types struct{ list, object func() any }

// TypesOf returns the types of a list and an object.
func TypesOf[List, Object any]() Types {
	return Types{func() any { return new(List) }, func() any { return new(Object) }}
}

// Differences are the fields that only the answers or only the types have.
type Differences map[string]bool

// Sorted returns them in order, never nil: null in JSON would be no answer.
func (d Differences) Sorted() []string {
	return append([]string{}, slices.Sorted(maps.Keys(d))...)
}

// CompareLists reads each list, by its path, and its first object as they are, and compares them with their types.
func (d Differences) CompareLists(lists map[string]Types, read func(path string) ([]byte, error), ignored ...string) {
	for path, types := range lists {
		compare := func(where string, into any) any {
			body, err := read(where)
			if err != nil {
				d[where+": "+err.Error()] = true
				return nil
			}
			return d.Compare(where, body, into, ignored...)
		}
		listed := compare(path, types.list())
		if document, isObject := listed.(map[string]any); isObject {
			listed = document[path]
		}
		items, _ := listed.([]any)
		if len(items) == 0 {
			d[path+": no object to compare"] = true
			continue
		}
		first, _ := items[0].(map[string]any)
		id := fmt.Sprint(first["identity"])
		if number, isNumber := first["id"].(float64); isNumber {
			id = fmt.Sprint(int64(number))
		}
		compare(path+"/"+id, types.object())
	}
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
