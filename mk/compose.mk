COMPOSE_FOLDER := deploy/compose

.PHONY: compose-local
compose-local: testbed ## the same from nothing but Debian packages, Go and wheels; ends by itself (root; ARGS="--help")
	@$(BIN)/python -m libs.testbed.containers $(ARGS)
