// Command kubernetes is the control plane, kubelet, kube-proxy and kubectl in one
// program, so that their common code is linked once. The program's name, or else
// its first argument, selects the component.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var parts = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"kube-proxy":              proxy.NewProxyCommand,
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
}

func main() {
	part := filepath.Base(os.Args[0])
	if parts[part] == nil && len(os.Args) > 1 {
		os.Args = os.Args[1:]
		part = os.Args[0]
	}
	command := parts[part]
	if command == nil {
		fmt.Fprintf(os.Stderr, "kubernetes: unknown part %q; expected one of:\n", part)
		for name := range parts {
			fmt.Fprintln(os.Stderr, "  "+name)
		}
		os.Exit(2)
	}
	os.Exit(cli.Run(command()))
}
