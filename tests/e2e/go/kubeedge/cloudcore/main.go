// Command cloudcore is KubeEdge's own, built from its packages.
package main

import (
	"os"

	"github.com/kubeedge/kubeedge/cloud/cmd/cloudcore/app"
	"k8s.io/component-base/logs"
)

func main() {
	logs.InitLogs()
	defer logs.FlushLogs()
	if err := app.NewCloudCoreCommand().Execute(); err != nil {
		logs.FlushLogs()
		os.Exit(1)
	}
}
