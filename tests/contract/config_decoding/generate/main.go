// Decodes every text of cases.json as the reference controller decodes its --cloud-config, and tells what came out.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"gopkg.in/yaml.v3"
)

// The shape of the file; keys are matched exactly, and those that are not here are passed over.
type file struct {
	Global struct {
		ClusterName string `yaml:"clusterName" json:"clusterName"`
		PreferIPv6  bool   `yaml:"preferIPv6" json:"preferIPv6"`
	} `yaml:"global" json:"global"`
	Rules []struct {
		Name  string `yaml:"name" json:"name"`
		Terms []struct {
			Requirements []struct {
				Key      string   `yaml:"key" json:"key"`
				Operator string   `yaml:"operator" json:"operator"`
				Values   []string `yaml:"values" json:"values"`
			} `yaml:"matchExpressions" json:"matchExpressions"`
		} `yaml:"nodeSelector" json:"nodeSelector"`
		Annotations      map[string]string `yaml:"annotations" json:"annotations"`
		Labels           map[string]string `yaml:"labels" json:"labels"`
		Taints           map[string]string `yaml:"taints" json:"taints"`
		PlatformMetadata map[string]string `yaml:"platformMetadata" json:"platformMetadata"`
		Features         struct {
			PublicIPDiscovery bool `yaml:"publicIPDiscovery" json:"publicIPDiscovery"`
		} `yaml:"features" json:"features"`
	} `yaml:"transformations" json:"transformations"`
}

type outcome struct {
	Text    string `json:"text"`
	Refused string `json:"refused,omitempty"`
	File    *file  `json:"file,omitempty"`
}

func decode(text string) outcome {
	read := new(file)
	if err := yaml.NewDecoder(strings.NewReader(text)).Decode(read); err != nil {
		return outcome{Text: text, Refused: err.Error()}
	}
	return outcome{Text: text, File: read}
}

func main() {
	var texts []string
	if err := json.NewDecoder(os.Stdin).Decode(&texts); err != nil {
		panic(err)
	}
	encoder := json.NewEncoder(os.Stdout) // it ends each value with a new line
	encoder.SetEscapeHTML(false)
	for i, text := range texts {
		fmt.Print(map[bool]string{true: "[", false: ","}[i == 0])
		if err := encoder.Encode(decode(text)); err != nil {
			panic(err)
		}
	}
	fmt.Println("]")
}
