package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// A history in which each operation follows the one before.
func sequence(operations ...Operation) []Operation {
	for i := range operations {
		operations[i].ID, operations[i].Lock = i+1, "lock"
		if operations[i].Call == 0 {
			operations[i].Call = int64(i+1) * int64(time.Second)
		}
		operations[i].Return = operations[i].Call + 1
		if operations[i].Until > 0 {
			operations[i].Until += operations[i].Call
		}
	}
	return operations
}

func acquire(hold int, token int64) Operation {
	return Operation{Kind: Acquire, Outcome: OK, Hold: hold, Token: token, Owner: "one", Until: int64(time.Hour)}
}

func of(kind Kind, outcome Outcome, hold int) Operation {
	return Operation{Kind: kind, Outcome: outcome, Hold: hold, Owner: "two", Until: 1}
}

func by(operation Operation, change func(*Operation)) Operation {
	change(&operation)
	return operation
}

func TestVerdicts(t *testing.T) {
	shared := func(o *Operation) { o.Mode = Mode{Shared: true} }
	permits := func(count int) func(*Operation) {
		return func(o *Operation) { o.Mode = Mode{Permits: count, Limit: 3} }
	}
	reentrant := func(o *Operation) { o.Reentrant, o.Owner = true, "one" }
	short := func(o *Operation) { o.Until = 1 }
	waiting := func(o *Operation) { o.Outcome, o.Token, o.Waits, o.Hold = Held, 0, true, 9 }
	tokens := func(of ...int64) Operation { return Operation{Kind: Get, Outcome: OK, Tokens: of} }
	of1 := func(kind Kind, outcome Outcome) Operation { return Operation{Kind: kind, Outcome: outcome, Token: 1} }
	for _, test := range []struct {
		name    string
		want    porcupine.CheckResult
		history []Operation
	}{
		{"two follow each other", porcupine.Ok, []Operation{acquire(1, 1), of(Release, OK, 1), acquire(2, 2)}},
		{"two hold at once", porcupine.Illegal, []Operation{acquire(1, 1), acquire(2, 2), of(Renew, OK, 1)}},
		{"a lease ends before its time", porcupine.Illegal, []Operation{acquire(1, 1), of(Renew, Lost, 1)}},
		{"a lease ends after its time", porcupine.Ok, []Operation{by(acquire(1, 1), short), of(Renew, Lost, 1)}},
		{"a renewal makes it longer", porcupine.Illegal, []Operation{
			by(acquire(1, 1), short), by(of(Renew, OK, 1), func(o *Operation) { o.Call, o.Until = int64(time.Second)+5, int64(time.Hour) }),
			of(Renew, Lost, 1)}},
		{"an ended lease comes back", porcupine.Illegal, []Operation{
			by(acquire(1, 1), short), of(Renew, Lost, 1), of(Renew, OK, 1)}},
		{"a token falls", porcupine.Illegal, []Operation{acquire(1, 2), of(Release, OK, 1), acquire(2, 1)}},
		{"a token repeats", porcupine.Illegal, []Operation{acquire(1, 2), of(Release, OK, 1), acquire(2, 2)}},
		{"a free lock is refused", porcupine.Illegal, []Operation{
			acquire(1, 1), of(Release, OK, 1), by(acquire(2, 2), waiting)}},
		{"a held lock is refused", porcupine.Ok, []Operation{acquire(1, 1), by(acquire(2, 2), waiting)}},
		{"a waiter is in front", porcupine.Ok, []Operation{
			by(acquire(1, 1), func(o *Operation) { waiting(o); o.Outcome = Unknown }), by(acquire(2, 2), waiting)}},
		{"readers share", porcupine.Ok, []Operation{
			by(acquire(1, 1), shared), by(acquire(2, 2), shared), of(Renew, OK, 1), of(Renew, OK, 2)}},
		{"a writer beside a reader", porcupine.Illegal, []Operation{
			by(acquire(1, 1), shared), acquire(2, 2), of(Renew, OK, 1)}},
		{"permits fit", porcupine.Ok, []Operation{
			by(acquire(1, 1), permits(1)), by(acquire(2, 2), permits(2)), of(Renew, OK, 1)}},
		{"permits do not fit", porcupine.Illegal, []Operation{
			by(acquire(1, 1), permits(2)), by(acquire(2, 2), permits(2)), of(Renew, OK, 1)}},
		{"a re-entry has the same token", porcupine.Ok, []Operation{
			by(acquire(1, 1), reentrant), by(acquire(2, 1), reentrant), of(Release, OK, 1), of(Renew, OK, 2)}},
		{"a re-entry has a new token", porcupine.Illegal, []Operation{
			by(acquire(1, 1), reentrant), by(acquire(2, 2), reentrant), of(Renew, OK, 1)}},
		{"a re-entry is refused", porcupine.Illegal, []Operation{
			by(acquire(1, 1), reentrant), by(acquire(2, 0), func(o *Operation) { reentrant(o); o.Outcome = Held })}},
		{"a release ends a re-entry too", porcupine.Illegal, []Operation{
			by(acquire(1, 1), reentrant), by(acquire(2, 1), reentrant), of(Release, OK, 1), of(Renew, Lost, 2)}},
		{"a release succeeds twice", porcupine.Illegal, []Operation{acquire(1, 1), of(Release, OK, 1), of(Release, OK, 1)}},
		{"a release is repeated", porcupine.Ok, []Operation{
			acquire(1, 1), of(Release, Unknown, 1), by(of(Release, OK, 1), func(o *Operation) { o.Repeated = true })}},
		{"a forced lease is renewed", porcupine.Illegal, []Operation{acquire(1, 1), of1(Force, OK), of(Renew, OK, 1)}},
		{"a forced lease is lost", porcupine.Ok, []Operation{acquire(1, 1), of1(Force, OK), of(Renew, Lost, 1)}},
		{"a held token is not seen", porcupine.Illegal, []Operation{acquire(1, 1), of1(Check, Lost)}},
		{"a released token is seen", porcupine.Illegal, []Operation{acquire(1, 1), of(Release, OK, 1), of1(Check, OK)}},
		{"all holders are shown", porcupine.Ok, []Operation{
			by(acquire(1, 1), shared), by(acquire(2, 2), shared), tokens(2, 1)}},
		{"a holder is not shown", porcupine.Illegal, []Operation{
			by(acquire(1, 1), shared), by(acquire(2, 2), shared), tokens(2)}},
		{"a grant without an answer is shown", porcupine.Ok, []Operation{
			by(acquire(1, 0), func(o *Operation) { o.Outcome = Unknown }), tokens(1), tokens(), acquire(2, 2)}},
		{"it is shown with an old token", porcupine.Illegal, []Operation{
			acquire(2, 2), of(Release, OK, 2), by(acquire(1, 0), func(o *Operation) { o.Outcome = Unknown }), tokens(1)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := Judge(sequence(test.history...), time.Minute).Whole(); got != test.want {
				t.Errorf("the verdict is %s, not %s", got, test.want)
			}
		})
	}
}

// Each broken promise is noticed wherever no legal explanation exists. A lost release has one if nobody asks before the
// lease ends; a lease may be revived, and a lock be granted twice, where nobody sees the other end of it.
func TestPlantedFaults(t *testing.T) {
	if os.Getenv("FENCEPOST_BIN") == "" {
		t.Skip("FENCEPOST_BIN does not name the server's program")
	}
	for _, promise := range Promises {
		t.Run(promise.Name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			store, err := NewStore("memory", folder)
			if err != nil {
				t.Fatal(err)
			}
			servers, err := NewServers(store, folder)
			if err != nil {
				t.Fatal(err)
			}
			defer servers.Stop()
			plant := NewPlant(servers.Addresses[0], promise)
			defer plant.Close()
			history := NewHistory()
			for seed := int64(0); len(plant.Broken()) < faults && seed < 20; seed++ {
				Work{Servers: []string{plant.Address()}, Clients: 8, TTL: promise.TTL, Modes: []Mode{{}, {}, {}},
					Waiting: promise.Waiting, Round: time.Hour, Seed: seed}.Run(history, time.Now().Add(3*time.Second))
			}
			verdict := Judge(history.Operations(), 10*time.Second)
			noticed, explained := 0, 0
			for lock, result := range verdict.Results {
				switch {
				case !plant.Broken()[lock] && result != porcupine.Ok, result == porcupine.Unknown:
					page := filepath.Join(os.TempDir(), "planted.html")
					_ = verdict.Draw(lock, page)
					t.Errorf("%s, in which no promise was broken, is %s: %s", lock, result, page)
				case result == porcupine.Illegal:
					noticed++
				case plant.Broken()[lock]:
					explained++
				}
			}
			t.Logf("noticed on %d locks, explained on %d", noticed, explained)
			if noticed < faults/2 || promise.Always && explained > 0 {
				t.Error("the judge does not notice it")
			}
		})
	}
}

// faults is of how many locks a promise is broken, at least.
const faults = 6
