"""`talos-ccm doctor`: checks an installation and suggests fixes."""
