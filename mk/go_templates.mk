GO_TEMPLATES := tests/unit/libs/gotemplate/go_templates

.PHONY: go-templates
go-templates: ## write what Go's text/template makes of the template cases again (needs Go)
	@cd $(GO_TEMPLATES)/generate && go run . > ../cases.json
