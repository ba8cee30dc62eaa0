package main

import (
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Process is a program that is started again when it ends.
type Process struct {
	mutex   sync.Mutex
	command *exec.Cmd
	stopped bool
	done    chan struct{}
}

// Start runs a command until Stop. It dies with this program. Its log gets what it prints.
func Start(log string, name string, arguments ...string) *Process {
	process := &Process{done: make(chan struct{})}
	go func() {
		// The kernel ends the program with the thread that started it.
		runtime.LockOSThread()
		defer close(process.done)
		for process.once(log, name, arguments) {
			time.Sleep(200 * time.Millisecond)
		}
	}()
	return process
}

func (p *Process) once(log, name string, arguments []string) bool {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	command := exec.Command("setpriv", append([]string{"--pdeathsig", "KILL", name}, arguments...)...)
	command.Stdout, command.Stderr = file, file
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.mutex.Lock()
	if p.stopped {
		p.mutex.Unlock()
		return false
	}
	err = command.Start()
	p.command = command
	p.mutex.Unlock()
	if err == nil {
		err = command.Wait()
	}
	fmt.Fprintln(file, "ended:", err)
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return !p.stopped
}

// signal goes to its children too.
func (p *Process) signal(signal syscall.Signal) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if p.command != nil && p.command.Process != nil {
		_ = syscall.Kill(-p.command.Process.Pid, signal)
	}
}

// Kill ends it at once. It is started again.
func (p *Process) Kill() { p.signal(syscall.SIGKILL) }

// Pause lets it stand still for so long.
func (p *Process) Pause(pause time.Duration) {
	p.signal(syscall.SIGSTOP)
	time.Sleep(pause)
	p.signal(syscall.SIGCONT)
}

// Stop ends it for good.
func (p *Process) Stop() {
	p.mutex.Lock()
	p.stopped = true
	p.mutex.Unlock()
	p.Kill()
	<-p.done
}

// Forwarder passes connections on to an address, and cuts them.
type Forwarder struct {
	Address string
	to      string

	mutex       sync.Mutex
	connections map[net.Conn]struct{}
}

// Forward listens on a free port.
func Forward(to string) (*Forwarder, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	forwarder := &Forwarder{Address: listener.Addr().String(), to: to, connections: map[net.Conn]struct{}{}}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go forwarder.serve(connection)
		}
	}()
	return forwarder, nil
}

func (f *Forwarder) serve(from net.Conn) {
	defer from.Close()
	to, err := net.Dial("tcp", f.to)
	if err != nil {
		return
	}
	defer to.Close()
	f.mutex.Lock()
	f.connections[from], f.connections[to] = struct{}{}, struct{}{}
	f.mutex.Unlock()
	defer func() {
		f.mutex.Lock()
		defer f.mutex.Unlock()
		delete(f.connections, from)
		delete(f.connections, to)
	}()
	go func() {
		_, _ = io.Copy(to, from)
		_ = to.Close()
	}()
	_, _ = io.Copy(from, to)
}

// Cut closes all connections.
func (f *Forwarder) Cut() {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	for connection := range f.connections {
		_ = connection.Close()
	}
}

// A Fault disturbs one part of the service.
type Fault struct {
	Name string
	Do   func(random *rand.Rand)
}

// killed and paused are the faults of a process; cut is that of what leads to it.
func killed(name string, process *Process) Fault {
	return Fault{"kill -9 of " + name, func(*rand.Rand) { process.Kill() }}
}

func paused(name string, process *Process) Fault {
	return Fault{"SIGSTOP of " + name, func(random *rand.Rand) {
		process.Pause(time.Duration(200+random.Intn(2300)) * time.Millisecond)
	}}
}

func cut(name string, forwarder *Forwarder) Fault {
	return Fault{"connections to " + name + " cut", func(*rand.Rand) { forwarder.Cut() }}
}

// Disturb does one fault after the other until the end, and counts them by name.
func Disturb(faults []Fault, end time.Time, random *rand.Rand) map[string]int {
	counts := map[string]int{}
	for len(faults) > 0 {
		time.Sleep(time.Duration(500+random.Intn(1500)) * time.Millisecond)
		// The last ones have the time to be recovered from.
		if time.Until(end) < 3*time.Second {
			break
		}
		fault := faults[random.Intn(len(faults))]
		fault.Do(random)
		counts[fault.Name]++
	}
	return counts
}
