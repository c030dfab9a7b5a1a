package main

import (
	"encoding/base64"
	"reflect"
	"regexp"
	"strings"
	"text/template"
)

// functions are those that the reference adds, by what its documentation says of each.
// Two are kinder: default without a value gives the default, and getValue of a key without = gives nothing.
var functions = template.FuncMap{
	"default": func(fallback any, given ...any) any {
		if len(given) == 0 || isEmpty(given[0]) {
			return fallback
		}
		return given[0]
	},
	"empty": isEmpty,
	"coalesce": func(given ...any) any {
		for _, value := range given {
			if !isEmpty(value) {
				return value
			}
		}
		return nil
	},
	"ternary": func(yes, no any, condition bool) any {
		if condition {
			return yes
		}
		return no
	},
	"upper":      strings.ToUpper,
	"lower":      strings.ToLower,
	"trim":       strings.TrimSpace,
	"trimSuffix": func(suffix, text string) string { return strings.TrimSuffix(text, suffix) },
	"trimPrefix": func(prefix, text string) string { return strings.TrimPrefix(text, prefix) },
	"replace":    func(old, with, text string) string { return strings.ReplaceAll(text, old, with) },
	"regexFind": func(pattern, text string) (string, error) {
		return submatch(pattern, text, 0)
	},
	"regexFindString": submatch,
	"regexReplaceAll": func(pattern, text, replacement string) (string, error) {
		compiled, err := regexp.Compile(pattern)
		if err != nil {
			return "", err
		}
		return compiled.ReplaceAllString(text, replacement), nil
	},
	"contains":  func(part, text string) bool { return strings.Contains(text, part) },
	"hasPrefix": func(prefix, text string) bool { return strings.HasPrefix(text, prefix) },
	"hasSuffix": func(suffix, text string) bool { return strings.HasSuffix(text, suffix) },
	"b64enc":    func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) },
	"b64dec": func(text string) (string, error) {
		decoded, err := base64.StdEncoding.DecodeString(text)
		return string(decoded), err
	},
	"getValue": func(source, key string) string {
		for _, part := range strings.Split(source, ";") {
			if pieces := strings.Split(part, "="); pieces[0] == key && len(pieces) > 1 {
				return pieces[1]
			}
		}
		return ""
	},
}

func isEmpty(value any) bool {
	held := reflect.ValueOf(value)
	return !held.IsValid() || held.IsZero()
}

func submatch(pattern, text string, group int) (string, error) {
	compiled, err := regexp.Compile(pattern)
	if err != nil {
		return "", err
	}
	found := compiled.FindStringSubmatch(text)
	if group < 0 || group >= len(found) {
		return "", nil
	}
	return found[group], nil
}
