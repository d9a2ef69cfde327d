// Command edgecore is KubeEdge's own, built from its packages.
package main

import (
	"os"

	"github.com/kubeedge/kubeedge/edge/cmd/edgecore/app"
	"k8s.io/component-base/logs"
)

func main() {
	logs.InitLogs()
	defer logs.FlushLogs()
	if err := app.NewEdgeCoreCommand().Execute(); err != nil {
		logs.FlushLogs()
		os.Exit(1)
	}
}
