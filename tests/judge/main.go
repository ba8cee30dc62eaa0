// Command judge lets clients use three servers that share a store, disturbs the servers and the store, and lets Porcupine
// decide whether what the clients saw has a legal explanation.
//
//	judge [flags] STORE
//
// FENCEPOST_BIN names the server's program. The judge exits with 1 if a lock's history has no explanation, and with 3 if
// none was found in time. Pages that show these histories are written into the folder of -pages.
package main

import (
	"flag"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

func main() {
	seconds := flag.Int("seconds", 20, "for how long the clients work")
	seed := flag.Int64("seed", time.Now().UnixNano()%1_000_000, "of what the clients and the faults choose")
	clients := flag.Int("clients", 8, "how many work at once")
	pages := flag.String("pages", ".", "the folder of pages that show what is not Ok")
	flag.Usage = func() {
		fmt.Fprintf(os.Stderr, "usage: judge [flags] %s\n", strings.Join(StoreNames(), "|"))
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	result, err := campaign(flag.Arg(0), *seconds, *seed, *clients, *pages)
	if err != nil {
		fmt.Fprintln(os.Stderr, "judge:", err)
		os.Exit(2)
	}
	switch result {
	case porcupine.Illegal:
		os.Exit(1)
	case porcupine.Unknown:
		os.Exit(3)
	}
}

// campaign is one run on one store, with its verdict.
func campaign(name string, seconds int, seed int64, clients int, pages string) (porcupine.CheckResult, error) {
	folder, err := os.MkdirTemp("", "judge")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(folder)
	// The user of a database reaches its data.
	if err := os.Chmod(folder, 0o711); err != nil {
		return "", err
	}
	own := filepath.Join(folder, "store")
	if err := os.Mkdir(own, 0o755); err != nil {
		return "", err
	}
	store, err := NewStore(name, own)
	if err != nil {
		return "", err
	}
	defer store.Stop()
	servers, err := NewServers(store, folder)
	if err != nil {
		return "", err
	}
	defer servers.Stop()

	history, end := NewHistory(), time.Now().Add(time.Duration(seconds)*time.Second)
	counted := make(chan map[string]int)
	go func() {
		counted <- Disturb(append(servers.Faults, store.Faults...), end, rand.New(rand.NewSource(seed)))
	}()
	Work{Servers: servers.Addresses, Clients: clients, TTL: 1500 * time.Millisecond, Modes: store.Modes, Waiting: 2, Reenters: true,
		Round: 4 * time.Second, Seed: seed}.Run(history, end)
	faults := <-counted
	operations := history.Operations()
	begin := time.Now()
	verdict := Judge(operations, time.Minute)
	report(name, seed, operations, faults, verdict, time.Since(begin))
	for _, result := range []porcupine.CheckResult{porcupine.Illegal, porcupine.Unknown} {
		for _, lock := range verdict.Locks(result) {
			page := filepath.Join(pages, name+"-"+strings.ReplaceAll(lock, "/", "-")+".html")
			if err := verdict.Draw(lock, page); err != nil {
				return "", err
			}
			fmt.Printf("%s: %s shows why\n", lock, page)
		}
	}
	return verdict.Whole(), nil
}

func report(name string, seed int64, operations []Operation, faults map[string]int, verdict Verdict, took time.Duration) {
	counts := map[string]int{}
	for _, o := range operations {
		counts[string(o.Kind)+" "+string(o.Outcome)]++
	}
	sum := 0
	for _, count := range faults {
		sum += count
	}
	fmt.Printf("%s: %s, seed %d: %d operations on %d locks, %d faults, judged in %.1f s\n", name, verdict.Whole(), seed,
		len(operations), len(verdict.Results), sum, took.Seconds())
	printCounts(counts)
	printCounts(faults)
}

func printCounts(counts map[string]int) {
	var lines []string
	for what, count := range counts {
		lines = append(lines, fmt.Sprintf("%6d %s", count, what))
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[7:], b[7:]) })
	for _, line := range lines {
		fmt.Println(line)
	}
}
