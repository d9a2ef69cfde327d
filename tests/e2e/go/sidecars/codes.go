package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Comparison is the result for one code and one client.
type Comparison struct {
	Logic string `json:"logic"`
	Code  string `json:"code"`
	Same  bool   `json:"same"`
	Said  string `json:"said"`
}

// compareCodes makes the driver answer with every gRPC code, on its own socket and
// through the relay, and prints a line of JSON for each code and client.
func compareCodes(direct, relayed, name string, timeout time.Duration) error {
	sockets := [2]string{direct, relayed}
	var clients [2]*driverClient
	for i, socket := range sockets {
		client, err := connect(socket, name, timeout)
		if err != nil {
			return err
		}
		clients[i] = client
	}
	out := json.NewEncoder(os.Stdout)
	for number := int(codes.OK); number <= int(codes.Unauthenticated); number++ {
		for _, prefix := range []string{mannerCode, mannerPlain} {
			for _, logic := range []string{logicClient, logicProvisioner, logicAttacher} {
				comparison, err := compare(clients, logic, prefix, number)
				if err != nil {
					return err
				}
				if err := out.Encode(comparison); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func compare(clients [2]*driverClient, logic, prefix string, number int) (*Comparison, error) {
	var decisions [2]*Decision
	for i := range clients {
		decision, err := clients[i].ask(logic, fmt.Sprintf("%s%d", prefix, number))
		if err != nil {
			return nil, err
		}
		decisions[i] = decision
	}
	meant := decisionOf(status.FromProto(statusOf(prefix, number)).Err())
	if number == int(codes.OK) {
		meant = decisionOf(nil)
	}
	said := difference(decisions[0], decisions[1], meant)
	return &Comparison{Logic: logic, Code: codes.Code(number).String(), Same: said == "", Said: said}, nil
}

// difference describes how the decisions differ from each other, or the direct one
// from the requested one; it is empty if all are equal.
func difference(direct, relayed, meant *Decision) string {
	switch {
	case direct.Code != meant.Code || direct.Message != meant.Message || !bytes.Equal(direct.Details, meant.Details):
		return fmt.Sprintf("the driver itself returned %s: %.60q", direct.Code, direct.Message)
	case relayed.Code != direct.Code:
		return fmt.Sprintf("%s directly, %s relayed: %.200q", direct.Code, relayed.Code, relayed.Message)
	case relayed.Message != direct.Message:
		return fmt.Sprintf("message of %d bytes directly, %d relayed: %.200q",
			len(direct.Message), len(relayed.Message), relayed.Message)
	case !bytes.Equal(relayed.Details, direct.Details):
		return fmt.Sprintf("details %x directly, %x relayed", direct.Details, relayed.Details)
	case relayed.State != direct.State || relayed.Final != direct.Final || relayed.Answer != direct.Answer:
		return fmt.Sprintf("%s (%s) directly, %s (%s) relayed",
			direct.State, direct.Answer, relayed.State, relayed.Answer)
	default:
		return ""
	}
}
