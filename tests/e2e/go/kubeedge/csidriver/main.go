// Command csidriver is KubeEdge's own CSI driver for the cloud. Its own command
// ends with "no version provided", since no option sets the version; this one
// sets it.
package main

import (
	"fmt"
	"os"

	"github.com/kubeedge/kubeedge/cloud/cmd/csidriver/app/options"
	"github.com/kubeedge/kubeedge/cloud/pkg/csidriver"
	"github.com/kubeedge/kubeedge/pkg/version"
	"github.com/spf13/pflag"
)

func main() {
	wanted := options.NewCSIDriverOptions()
	flags := pflag.NewFlagSet("csidriver", pflag.ExitOnError)
	for _, set := range wanted.Flags().FlagSets {
		flags.AddFlagSet(set)
	}
	_ = flags.Parse(os.Args[1:])
	wanted.Version = version.Get().GitVersion
	driver, err := csidriver.NewCSIDriver(wanted)
	if err != nil {
		fmt.Fprintln(os.Stderr, "csidriver:", err)
		os.Exit(1)
	}
	driver.Run()
}
