package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// Servers are those of Fencepost that share a store.
type Servers struct {
	// Addresses are where clients reach them: at forwarders, which can be cut.
	Addresses []string
	Faults    []Fault

	processes []*Process
}

// NewServers starts them, and returns when they serve.
func NewServers(store *Store, folder string) (*Servers, error) {
	program := os.Getenv("FENCEPOST_BIN")
	if program == "" {
		return nil, errors.New("FENCEPOST_BIN does not name the server's program")
	}
	servers := &Servers{}
	for number := range store.Servers {
		if err := servers.start(program, filepath.Join(folder, strconv.Itoa(number)), store); err != nil {
			servers.Stop()
			return nil, err
		}
	}
	return servers, nil
}

func (s *Servers) start(program, folder string, store *Store) error {
	port := freePorts(1)[0]
	config := fmt.Sprintf("listen = [\"127.0.0.1:%d\"]\ndata_dir = %q\n\n[namespaces.default]\nttl_min = \"100ms\"\nttl_default = \"2s\"\n"+
		"ttl_max = \"10s\"\n%s", port, folder, store.Config)
	err := errors.Join(os.Mkdir(folder, 0o700), os.WriteFile(folder+".toml", []byte(config), 0o600))
	if err != nil {
		return err
	}
	name := fmt.Sprint("server ", len(s.processes)+1)
	process := Start(folder+".log", program, "serve", "--config", folder+".toml")
	s.processes = append(s.processes, process)
	forwarder, err := Forward(fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	s.Addresses = append(s.Addresses, forwarder.Address)
	s.Faults = append(s.Faults, paused(name, process), cut(name, forwarder))
	if !store.Forgets {
		s.Faults = append(s.Faults, killed(name, process))
	}
	fields := Fields{"namespace": "default", "name": "judge/" + name, "owner": "judge"}
	err = await(name+" serves", func() bool {
		_, reason := call(forwarder.Address, "LockService/Acquire", fields)
		return reason == ""
	})
	if err != nil {
		text, _ := os.ReadFile(folder + ".log")
		return fmt.Errorf("%w: %s", err, text[max(0, len(text)-500):])
	}
	return nil
}

// Stop ends them.
func (s *Servers) Stop() {
	for _, process := range s.processes {
		process.Stop()
	}
}
