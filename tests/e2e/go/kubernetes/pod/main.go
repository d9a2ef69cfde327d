// Command pod is the only program in the image of the test's pods. Its arguments
// are executed in order; without arguments the command waits, as the process of a
// pod's sandbox must.
package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pod:", err)
		os.Exit(1)
	}
}

func run(orders []string) error {
	for len(orders) > 0 {
		order, rest := orders[0], orders[1:]
		switch {
		case order == "write" && len(rest) >= 2: // write FILE TEXT
			if err := write(rest[0], rest[1]); err != nil {
				return err
			}
			orders = rest[2:]
		case order == "expect" && len(rest) >= 2: // expect FILE TEXT
			if err := expect(rest[0], rest[1]); err != nil {
				return err
			}
			orders = rest[2:]
		case order == "wait" && len(rest) == 0:
			orders = nil
			fmt.Println("ready")
			wait()
		default:
			return fmt.Errorf("cannot do %q; give write FILE TEXT, expect FILE TEXT, or wait", orders)
		}
	}
	if len(os.Args) == 1 {
		wait()
	}
	return nil
}

// write writes a text at the start of a file or of a block device, and syncs it.
func write(path, text string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.WriteString(text); err != nil {
		return err
	}
	return file.Sync()
}

func expect(path, text string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	found := make([]byte, len(text))
	if _, err := io.ReadFull(file, found); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if string(found) != text {
		return fmt.Errorf("%s begins with %q, not with %q", path, found, text)
	}
	return nil
}

func wait() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	<-end
}
