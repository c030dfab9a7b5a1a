package main

// rules are what configurations are made of; each is rendered for every machine.
var rules = []string{
	"{{ .Platform }}", "{{ .Zone }}", "{{ .Region }}-{{ .Zone }}", "{{ .InstanceType | lower }}", "{{ .Hostname }}", "{{ .Spot }}", "{{ .Tags }}", "{{ .Tags.team }}", "{{ index .Tags \"team\" }}", "{{ index .Tags \"cost-center\" }}", "{{ .ProductName }}", "{{ .SKUNumber }}", "{{ .UUID }}", "{{.SerialNumber}}",
	"{{ if .Spot }}spot{{ else }}on-demand{{ end }}", "{{ ternary \"spot\" \"on-demand\" .Spot }}", "{{ .Spot | ternary \"true:NoSchedule\" \"NoSchedule\" }}", "{{ default \"unknown\" .Region }}", "{{ .Zone | default .Region | default \"none\" }}", "{{ coalesce .InternalDNS .ExternalDNS .Hostname \"no name\" }}",
	"{{ regexFind \"^[a-z]+\" .Hostname }}", "{{ regexFindString \"^([a-z]+)-([0-9]+)\" .Hostname 2 }}", "{{ regexReplaceAll \"[^A-Za-z0-9_.-]+\" .ProductName \"-\" }}", "{{ regexReplaceAll \"^[^a-zA-Z0-9]+|[^a-zA-Z0-9]+$\" (regexReplaceAll \"[^A-Za-z0-9_.-]+\" .ProductName \"-\") \"\" }}", "{{ regexFindString `^(\\w+)\\.(\\w+)` .InstanceType 1 }}", "{{ regexReplaceAll `(\\w+)://(.*)` .ProviderID `${1}/$2` }}",
	"{{ getValue .SerialNumber \"i\" }}", "{{ getValue .SerialNumber \"role\" | default \"worker\" }}", "proxmox://{{ .Region }}/{{ getValue .SerialNumber \"i\" }}", "{{ trimSuffix (printf \".%s\" .Region) .Hostname }}", "{{ .Hostname | trimSuffix \".example.com\" | upper }}", "{{ trimPrefix \"ip-\" .Hostname | replace \"-\" \".\" }}",
	"{{ if and (eq .Platform \"aws\") .Spot }}a{{ else if hasPrefix \"cpx\" .InstanceType }}b{{ else if contains \"PC\" .ProductName }}c{{ else }}d{{ end }}", "{{ if or (hasPrefix \"worker\" .Hostname) (hasSuffix \".internal\" .Hostname) }}yes{{ end }}", "{{ if not .Region }}no region{{ end }}", "{{ if ne .Platform \"metal\" }}cloud{{ else }}metal{{ end }}", "{{ if eq .Platform \"aws\" \"gcp\" \"azure\" }}big{{ else }}small{{ end }}",
	"{{- with .Tags.team -}} team-{{ . }} {{- else -}} nobody {{- end -}}", "{{ with .Region }}{{ . }}/{{ $.Zone }}{{ end }}", "{{ range $k, $v := .Tags }}{{ $k }}={{ $v }};{{ end }}", "{{ range $k, $v := .Tags }}{{ if eq $k \"Name\" }}{{ $v }}{{ end }}{{ else }}untagged{{ end }}", "{{ $n := .Hostname }}{{ if .InternalDNS }}{{ $n = .InternalDNS }}{{ end }}{{ $n | len }}", "{{ printf \"%s-%s\" .Region .Zone | trimSuffix \"-\" }}", "{{ printf \"%-10s|%5s|%q\" .Platform .Zone .ProductName }}", "{{ .ProductName | b64enc }}", "{{ .ProductName | b64enc | b64dec }}",
	"{{ if gt (len .Hostname) 10 }}{{ slice .Hostname 0 10 }}{{ else }}{{ .Hostname }}{{ end }}", "{{ .hostname }}", "{{ .Nope }}", "{{ .Tags.team.x }}", "{{ upper .Spot }}", "{{ .Hostname | nope }}", "{{ default .Hostname }}", "{{ if .Platform }}{{ .Nope }}{{ end }}", "{{ .Platform.Name }}", "{{ len .Tags }}", "{{ empty .Tags }}", "{{ printf \"%v\" . }}", "{{ $x := dict }}", "{{ .Hostname | regexFind \"[\" }}", "{{ with .Tags }}{{ .team }}{{ end }}",
	"{{/* the size */}}{{- if regexFind \"xlarge$\" .InstanceType }}large{{ else }}normal{{ end -}}\n", "{{- /* a */ -}} \n a {{- \"b\" -}} \n", "{{ .Hostname | trim | lower | replace \" \" \"-\" }}:NoSchedule",
}

func groups() []Group {
	values := []string{"values"}
	return []Group{
		{values, syntax},
		{values, control},
		{values, comparisons},
		{values, builtins},
		{values, added},
		{values, formats},
		{values, matrix()},
		{[]string{"hcloud", "aws", "metal", "nothing"}, rules},
	}
}
