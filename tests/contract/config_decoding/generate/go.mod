module talos-ccm/tests/config-decoding

go 1.26.2

require gopkg.in/yaml.v3 v3.0.1
