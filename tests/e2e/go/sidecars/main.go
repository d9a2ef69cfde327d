// Command sidecars calls a CSI socket with the code of the Kubernetes sidecars.
// external-provisioner and external-attacher classify each error as final or not
// final; they must never classify a fault of the relay as final. The command also
// contains the driver that fails as requested, and a minimal API server.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"
)

const usage = `usage:
  sidecars driver --endpoint PATH --drivername NAME
  sidecars codes --direct PATH --relayed PATH --drivername NAME
  sidecars ask --endpoint PATH --drivername NAME --logic LOGIC --manner MANNER --timeout TIME
  sidecars plane --endpoint PATH --drivername NAME --timeout TIME --for TIME --every TIME
  sidecars api --listen ADDR`

func main() {
	if len(os.Args) < 2 {
		fail(fmt.Errorf("no command\n%s", usage))
	}
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	endpoint := flags.String("endpoint", "", "path of the unix socket")
	direct := flags.String("direct", "", "path of the driver's own unix socket")
	relayed := flags.String("relayed", "", "path of the relay's unix socket in front of the driver")
	name := flags.String("drivername", "", "name of the driver")
	logic := flags.String("logic", "", "the client: client, provisioner or attacher")
	manner := flags.String("manner", "", "how the driver answers")
	timeout := flags.Duration("timeout", 10*time.Second, "time for one call")
	length := flags.Duration("for", 0, "how long to repeat the calls")
	every := flags.Duration("every", time.Second, "time between two rounds of calls")
	listen := flags.String("listen", "", "address to serve on")
	if err := flags.Parse(os.Args[2:]); err != nil {
		fail(err)
	}
	var err error
	switch os.Args[1] {
	case "driver":
		err = serveDriver(*endpoint, *name)
	case "codes":
		err = compareCodes(*direct, *relayed, *name, *timeout)
	case "ask":
		err = askOnce(*endpoint, *name, *logic, *manner, *timeout)
	case "plane":
		err = watchPlane(*endpoint, *name, *timeout, *length, *every)
	case "api":
		err = serveAPI(*listen)
	default:
		err = fmt.Errorf("unknown command %s\n%s", os.Args[1], usage)
	}
	if err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "sidecars:", err)
	os.Exit(1)
}
