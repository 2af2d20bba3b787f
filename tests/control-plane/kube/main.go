// Command kube is kube-apiserver and kube-proxy in one binary: it
// is whichever its own file name says, so that the large common part is linked once.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
)

var commands = map[string]func() *cobra.Command{
	"kube-apiserver": apiserver.NewAPIServerCommand,
	"kube-proxy":     proxy.NewProxyCommand,
}

func main() {
	name := filepath.Base(os.Args[0])
	command, known := commands[name]
	if !known {
		fmt.Fprintf(os.Stderr, "%s: link this file as kube-apiserver or kube-proxy\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(command()))
}
