package main

import (
	"errors"
	"fmt"
	"math/rand"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Store is what stands behind the servers.
type Store struct {
	// Servers is how many of Fencepost's share it.
	Servers int
	// Config is the namespace's part of the configuration.
	Config string
	// Forgets says that a server which ends loses its leases.
	Forgets bool
	Modes   []Mode
	Faults  []Fault

	processes []*Process
}

// Stop ends its servers.
func (s *Store) Stop() {
	for _, process := range s.processes {
		process.Stop()
	}
}

// allModes are an exclusive lock, one that is shared, and a semaphore.
var allModes = []Mode{{}, {Shared: true}, {Permits: 2, Limit: 3}}

// stores start each store in a folder of its own.
var stores = map[string]func(folder string) (*Store, error){
	"memory": func(string) (*Store, error) {
		return &Store{Servers: 1, Forgets: true, Config: "guarantee = \"ap\"\nembedded = { path = \":memory:\" }\n"}, nil
	},
	"file": func(string) (*Store, error) {
		return &Store{Servers: 1, Config: "guarantee = \"cp\"\n"}, nil
	},
	"redis":     redis,
	"etcd":      etcd,
	"zookeeper": zookeeper,
	"postgres":  postgres,
	"mysql":     mysql,
}

// StoreNames are their names, in order.
func StoreNames() []string {
	var names []string
	for name := range stores {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// NewStore starts one.
func NewStore(name, folder string) (*Store, error) {
	start := stores[name]
	if start == nil {
		return nil, fmt.Errorf("store %q is none of %s", name, strings.Join(StoreNames(), ", "))
	}
	store, err := start(folder)
	if err == nil && store.Modes == nil {
		store.Modes = allModes
	}
	return store, err
}

// freePorts are ports below those that the system gives to connections.
func freePorts(count int) []int {
	var ports []int
	for len(ports) < count {
		port := 22_000 + rand.Intn(9_000)
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil && !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
		if err == nil {
			_ = listener.Close()
		}
	}
	return ports
}

// await waits until something is so.
func await(what string, is func() bool) error {
	for begin := time.Now(); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Since(begin) > time.Minute {
			return errors.New("not within a minute: " + what)
		}
	}
	return nil
}

func listens(port int) bool {
	connection, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err == nil {
		_ = connection.Close()
	}
	return err == nil
}

// add lets a process be disturbed, and the servers reach it by a forwarder, whose address is returned.
func (s *Store) add(name string, process *Process, port int) (string, error) {
	s.processes = append(s.processes, process)
	forwarder, err := Forward(fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return "", err
	}
	s.Faults = append(s.Faults, killed(name, process), paused(name, process), cut(name, forwarder))
	return forwarder.Address, await(name+" listens", func() bool { return listens(port) })
}

func redis(folder string) (*Store, error) {
	port := freePorts(1)[0]
	store := &Store{Servers: 3}
	process := Start(filepath.Join(folder, "redis.log"), "redis-server", "--port", strconv.Itoa(port), "--bind",
		"127.0.0.1", "--dir", folder, "--appendonly", "yes", "--appendfsync", "always", "--maxmemory-policy", "noeviction")
	address, err := store.add("Redis", process, port)
	store.Config = fmt.Sprintf("guarantee = \"ap\"\nbackend = \"redis\"\nredis = { urls = [\"redis://%s\"], on_empty_store = \"admit\" }\n", address)
	return store, err
}

// as runs a command as the user of a database, which refuses to run as root.
func as(name string, command ...string) ([]string, error) {
	if os.Geteuid() != 0 {
		return command, nil
	}
	found, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	return append([]string{"setpriv", "--reuid=" + found.Uid, "--regid=" + found.Gid, "--clear-groups"}, command...), nil
}

// give gives a folder to that user.
func give(folder, name string) error {
	found, err := user.Lookup(name)
	if err != nil || os.Geteuid() != 0 {
		return err
	}
	uid, _ := strconv.Atoi(found.Uid)
	gid, _ := strconv.Atoi(found.Gid)
	return os.Chown(folder, uid, gid)
}

func run(command []string) error {
	process := exec.Command(command[0], command[1:]...)
	process.Dir = "/"
	output, err := process.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, output)
	}
	return nil
}

// database starts one that is installed into a folder by one command, is served by another, and needs statements.
func database(folder, owner string, install, serve, statement []string, port int) (*Store, string, error) {
	if err := give(folder, owner); err != nil {
		return nil, "", err
	}
	install, err := as(owner, install...)
	if err != nil {
		return nil, "", err
	}
	if err := run(install); err != nil {
		return nil, "", err
	}
	serve, err = as(owner, serve...)
	if err != nil {
		return nil, "", err
	}
	store := &Store{Servers: 3}
	address, err := store.add(owner, Start(filepath.Join(folder, "log"), serve[0], serve[1:]...), port)
	if err == nil {
		err = await("it is set up", func() bool { return run(statement) == nil })
	}
	return store, address, err
}

func postgres(folder string) (*Store, error) {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	if len(found) == 0 {
		return nil, errors.New("there is no PostgreSQL in /usr/lib/postgresql")
	}
	bin, port := found[len(found)-1], freePorts(1)[0]
	data := filepath.Join(folder, "data")
	store, address, err := database(folder, "postgres",
		[]string{bin + "/initdb", "--no-sync", "--auth=trust", "--username=fencepost", "--encoding=UTF8", "-D", data},
		[]string{bin + "/postgres", "-D", data, "-p", strconv.Itoa(port), "-c", "listen_addresses=127.0.0.1", "-c",
			"unix_socket_directories=", "-c", "max_connections=60", "-c", "lc_messages=C"},
		[]string{"psql", "-h", "127.0.0.1", "-p", strconv.Itoa(port), "-U", "fencepost", "-c",
			"CREATE DATABASE fencepost", "template1"}, port)
	if err != nil {
		return nil, err
	}
	store.Config = fmt.Sprintf("guarantee = \"cp\"\nbackend = \"postgres\"\n"+
		"postgres = { servers = [\"%s\"], database = \"fencepost\", user = \"fencepost\", replication = \"single\" }\n", address)
	return store, nil
}

func mysql(folder string) (*Store, error) {
	port, data := freePorts(1)[0], filepath.Join(folder, "data")
	store, address, err := database(folder, "mysql",
		[]string{"mariadb-install-db", "--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db",
			"--skip-name-resolve", "--datadir=" + data},
		[]string{"/usr/sbin/mariadbd", "--no-defaults", "--datadir=" + data, "--port=" + strconv.Itoa(port),
			"--bind-address=127.0.0.1", "--skip-name-resolve", "--socket=" + folder + "/socket",
			"--pid-file=" + folder + "/pid", "--max-connections=400", "--innodb-buffer-pool-size=24M",
			"--character-set-server=utf8mb4"},
		[]string{"mariadb", "--no-defaults", "-h", "127.0.0.1", "-P", strconv.Itoa(port), "-u", "root", "-e",
			"CREATE DATABASE fencepost; CREATE USER fencepost@'127.0.0.1'; GRANT ALL ON fencepost.* TO fencepost@'127.0.0.1'"},
		port)
	if err != nil {
		return nil, err
	}
	store.Config = fmt.Sprintf("guarantee = \"cp\"\nbackend = \"mysql\"\n"+
		"mysql = { servers = [\"%s\"], database = \"fencepost\", user = \"fencepost\" }\n", address)
	return store, nil
}

// three starts a cluster, and lets its leader be killed.
func three(name string, start func(number int) (*Process, int), leads func(port int) bool) (*Store, []string, error) {
	store := &Store{Servers: 3}
	var processes []*Process
	var ports []int
	for number := range 3 {
		process, port := start(number)
		processes, ports = append(processes, process), append(ports, port)
	}
	var addresses []string
	for number, process := range processes {
		address, err := store.add(fmt.Sprintf("%s %d", name, number+1), process, ports[number])
		if err != nil {
			return nil, nil, err
		}
		addresses = append(addresses, strconv.Quote(address))
	}
	store.Faults = append(store.Faults, Fault{"kill -9 of the leader of " + name, func(*rand.Rand) {
		for number, process := range processes {
			if leads(ports[number]) {
				process.Kill()
			}
		}
	}})
	return store, addresses, await("there is a leader", func() bool { return slices.ContainsFunc(ports, leads) })
}

func etcd(folder string) (*Store, error) {
	program := os.Getenv("ETCD")
	if program == "" {
		program = "etcd"
	}
	ports := freePorts(6)
	var initial []string
	for number := range 3 {
		initial = append(initial, fmt.Sprintf("m%d=http://127.0.0.1:%d", number, ports[3+number]))
	}
	start := func(number int) (*Process, int) {
		clients := fmt.Sprintf("http://127.0.0.1:%d", ports[number])
		peers := fmt.Sprintf("http://127.0.0.1:%d", ports[3+number])
		name := fmt.Sprintf("m%d", number)
		return Start(filepath.Join(folder, name+".log"), program, "--name", name, "--data-dir", filepath.Join(folder, name),
			"--listen-client-urls", clients, "--advertise-client-urls", clients, "--listen-peer-urls", peers,
			"--initial-advertise-peer-urls", peers, "--initial-cluster", strings.Join(initial, ","),
			"--election-timeout", "1000", "--log-level", "warn"), ports[number]
	}
	store, addresses, err := three("etcd", start, func(port int) bool {
		return strings.Contains(fetched(fmt.Sprintf("http://127.0.0.1:%d/metrics", port)), "etcd_server_is_leader 1")
	})
	if err != nil {
		return nil, err
	}
	store.Config = fmt.Sprintf("guarantee = \"cp\"\nbackend = \"etcd\"\netcd = { endpoints = [%s] }\n",
		strings.ReplaceAll(strings.Join(addresses, ", "), `"127`, `"http://127`))
	return store, nil
}

// fetched is what a page says, "" if it cannot be had.
func fetched(url string) string {
	short := http.Client{Timeout: time.Second}
	response, err := short.Get(url)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	var text strings.Builder
	_ = response.Write(&text)
	return text.String()
}

func zookeeper(folder string) (*Store, error) {
	classes := "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-simple.jar"
	if directory := os.Getenv("ZOOKEEPER"); directory != "" {
		classes = directory + "/*"
	}
	ports := freePorts(9)
	var ensemble string
	for number := range 3 {
		ensemble += fmt.Sprintf("server.%d=127.0.0.1:%d:%d\n", number+1, ports[3+number], ports[6+number])
	}
	start := func(number int) (*Process, int) {
		own := filepath.Join(folder, strconv.Itoa(number+1))
		settings := fmt.Sprintf("tickTime=200\ninitLimit=50\nsyncLimit=10\ndataDir=%s/data\nclientPort=%d\n"+
			"clientPortAddress=127.0.0.1\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\nmaxClientCnxns=0\n%s",
			own, ports[number], ensemble)
		err := errors.Join(os.MkdirAll(own+"/data", 0o755), os.WriteFile(own+"/zoo.cfg", []byte(settings), 0o644),
			os.WriteFile(own+"/data/myid", fmt.Appendln(nil, number+1), 0o644))
		if err != nil {
			panic(err)
		}
		return Start(own+"/log", "java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx128m",
			"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dzookeeper.jmx.log4j.disable=true", "-cp", classes,
			"org.apache.zookeeper.server.quorum.QuorumPeerMain", own+"/zoo.cfg"), ports[number]
	}
	store, addresses, err := three("ZooKeeper", start, func(port int) bool {
		return strings.Contains(asked(port, "srvr"), "Mode: leader")
	})
	if err != nil {
		return nil, err
	}
	store.Config = fmt.Sprintf("guarantee = \"cp\"\nbackend = \"zookeeper\"\nzookeeper = { servers = [%s] }\n",
		strings.Join(addresses, ", "))
	return store, nil
}

// asked is what a ZooKeeper answers to a word of four letters.
func asked(port int, word string) string {
	connection, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), time.Second)
	if err != nil {
		return ""
	}
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(time.Second))
	if _, err := connection.Write([]byte(word)); errors.Is(err, syscall.EPIPE) {
		return ""
	}
	answer := make([]byte, 4096)
	read, _ := connection.Read(answer)
	return string(answer[:read])
}
