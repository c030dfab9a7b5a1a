// A cloud controller manager as clouds build theirs, with k8s.io/cloud-provider and a cloud that is a file. It has
// the flags of every such program; --cloud-config names the file.
package main

import (
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/util/wait"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	"k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/names"
	"k8s.io/cloud-provider/options"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"
	_ "k8s.io/component-base/logs/json/register"
)

func main() {
	defaults, err := options.NewCloudControllerManagerOptions()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	command := app.NewCloudControllerManagerCommand(
		defaults,
		theCloud,
		app.DefaultInitFuncConstructors,
		names.CCMControllerAliases(),
		cliflag.NamedFlagSets{},
		wait.NeverStop,
	)
	os.Exit(cli.Run(command))
}

func theCloud(configured *config.CompletedConfig) cloudprovider.Interface {
	return cloud{file: configured.ComponentConfig.KubeCloudShared.CloudProvider.CloudConfigFile}
}
