// Command generate writes what Go's own text/template makes of templates and data: output, or error with its place.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"text/template"
)

// Case is one template with one set of data. Output is null where there is an error.
type Case struct {
	Template string  `json:"template"`
	Data     string  `json:"data"`
	Output   *string `json:"output"`
	Error    *Error  `json:"error,omitempty"`
}

// Error is what Go reports. The reason is known of execution only: parse errors have our words.
type Error struct {
	Kind   string `json:"kind"` // parse or exec
	Line   int    `json:"line"`
	Reason string `json:"reason,omitempty"`
}

// Group is templates that are each rendered with each set of data.
type Group struct {
	data      []string
	templates []string
}

const name = "rule"

var (
	whileParsing   = regexp.MustCompile(`^template: rule:(\d+): `)
	whileExecuting = regexp.MustCompile(`(?s)^template: rule:(\d+):\d+: executing "[^"]*" at <.*?>: (.*)$`)
)

func main() {
	cases := []Case{}
	seen := map[[2]string]bool{}
	for _, group := range groups() {
		for _, source := range group.templates {
			for _, set := range group.data {
				if key := [2]string{source, set}; !seen[key] {
					seen[key] = true
					cases = append(cases, render(source, set))
				}
			}
		}
	}
	fmt.Printf("{\"generated_by\": \"make go-templates\", \"go\": %q,\n\"data\": [\n", runtime.Version())
	writeLines(described())
	fmt.Print("],\n\"cases\": [\n")
	writeLines(cases)
	fmt.Print("]}\n")
}

// writeLines writes the items of a JSON list, one line each.
func writeLines[T any](items []T) {
	for i, item := range items {
		var line strings.Builder
		encoder := json.NewEncoder(&line)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(item); err != nil {
			log.Fatal(err)
		}
		text := strings.TrimSuffix(line.String(), "\n")
		if i < len(items)-1 {
			text += ","
		}
		fmt.Println(text)
	}
}

func render(source, set string) Case {
	result := Case{Template: source, Data: set}
	parsed, err := template.New(name).Funcs(functions).Parse(source)
	if err != nil {
		result.Error = parseError(err)
		return result
	}
	var text strings.Builder
	if err := parsed.Execute(&text, sets[set]); err != nil {
		result.Error = execError(err)
		return result
	}
	output := strings.ToValidUTF8(text.String(), "\uFFFD")
	if output != text.String() { // ToValidUTF8 replaces runs of invalid bytes, JSON and we each byte
		output = string([]rune(text.String()))
	}
	result.Output = &output
	return result
}

func parseError(err error) *Error {
	parts := whileParsing.FindStringSubmatch(err.Error())
	if parts == nil {
		log.Fatalf("unread parse error: %v", err)
	}
	return &Error{Kind: "parse", Line: number(parts[1])}
}

func execError(err error) *Error {
	parts := whileExecuting.FindStringSubmatch(err.Error())
	if parts == nil {
		log.Fatalf("unread error of execution: %v", err)
	}
	return &Error{Kind: "exec", Line: number(parts[1]), Reason: parts[2]}
}

func number(digits string) int {
	value, err := strconv.Atoi(digits)
	if err != nil {
		log.Fatal(err)
	}
	return value
}
