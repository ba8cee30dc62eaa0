package main

import (
	"fmt"
	"math/rand"
	"sync"
	"time"
)

// Work is what the clients do.
type Work struct {
	Servers []string
	Clients int
	// TTL of each lease.
	TTL time.Duration
	// Modes that the store offers.
	Modes []Mode
	// Waiting is how many of three Acquires stand in the queue.
	Waiting int
	// Reenters says whether the store offers that.
	Reenters bool
	// Round is for how long the clients use the same locks: short histories are judged fast.
	Round time.Duration
	Seed  int64
}

// owners is how many names the clients of a lock share, so that some of them re-enter.
const owners = 3

// Run lets the clients work until the end.
func (w Work) Run(history *History, end time.Time) {
	var group sync.WaitGroup
	for number := range w.Clients {
		group.Go(func() {
			worker := &worker{Work: w, history: history, number: number, end: end,
				random: rand.New(rand.NewSource(w.Seed*1000 + int64(number)))}
			for time.Now().Before(end) {
				worker.turn()
			}
		})
	}
	group.Wait()
}

// One client.
type worker struct {
	Work
	history *History
	number  int
	random  *rand.Rand
	end     time.Time
	// seen is a token of each lock that this client has seen.
	seen map[string]int64
}

func (w *worker) server() string { return w.Servers[w.random.Intn(len(w.Servers))] }

func (w *worker) begin(kind Kind, lock string) Operation {
	return w.history.Begin(kind, lock, w.number)
}

// A lock of this round, and the mode in which it is used.
func (w *worker) lock() (string, Mode) {
	round := w.history.Now() / int64(w.Round)
	kind := w.random.Intn(len(w.Modes))
	mode := w.Modes[kind]
	name := fmt.Sprintf("judge/%d/%d/%d", w.Seed, round, kind)
	// A lock that is shared is at times taken by one alone.
	if mode.Shared && w.random.Intn(4) == 0 {
		mode = Mode{}
	}
	if mode.Permits > 0 {
		mode.Permits = 1 + w.random.Intn(mode.Permits)
	}
	return name, mode
}

func (m Mode) fields() Fields {
	switch {
	case m.Shared:
		return Fields{"shared": Fields{}}
	case m.Permits > 0:
		return Fields{"semaphore": Fields{"permits": m.Permits, "limit": m.Limit}}
	}
	return Fields{"exclusive": Fields{}}
}

func (w *worker) turn() {
	lock, mode := w.lock()
	switch token := w.seen[lock]; {
	case w.random.Intn(6) == 0:
		w.get(lock)
	case token > 0 && w.random.Intn(8) == 0:
		w.check(lock, token)
	case token > 0 && w.random.Intn(25) == 0:
		w.force(lock, token)
	default:
		w.hold(lock, mode)
	}
}

// see remembers a token, to ask for it later.
func (w *worker) see(lock string, token int64) {
	if w.seen == nil || len(w.seen) > 32 {
		w.seen = map[string]int64{}
	}
	w.seen[lock] = token
}

// look is a call that changes nothing: without an answer it says nothing.
func (w *worker) look(operation Operation, method string, fields Fields, note func(*Operation, Answer) Outcome) {
	answer, reason := call(w.server(), method, fields)
	if reason != "" {
		time.Sleep(50 * time.Millisecond)
		return
	}
	outcome := note(&operation, answer)
	w.history.End(operation, outcome)
}

func (w *worker) get(lock string) {
	fields := Fields{"namespace": "default", "name": lock}
	w.look(w.begin(Get, lock), "LockService/GetLock", fields, func(operation *Operation, answer Answer) Outcome {
		for _, holder := range answer.Lock.Holders {
			operation.Tokens = append(operation.Tokens, holder.Token)
			w.see(lock, holder.Token)
		}
		return OK
	})
}

func (w *worker) check(lock string, token int64) {
	fields := Fields{"namespace": "default", "name": lock, "fencingToken": token}
	operation := w.begin(Check, lock)
	operation.Token = token
	w.look(operation, "LockService/CheckToken", fields, func(_ *Operation, answer Answer) Outcome {
		if answer.Held {
			return OK
		}
		return Lost
	})
}

func (w *worker) force(lock string, token int64) {
	operation := w.begin(Force, lock)
	operation.Token = token
	fields := Fields{"namespace": "default", "name": lock, "fencingToken": token}
	w.finish(operation, "AdminService/ForceRelease", fields)
}

// finish repeats a Release or ForceRelease until it is decided.
func (w *worker) finish(operation Operation, method string, fields Fields) {
	for range 4 {
		operation.Call = w.history.Now()
		_, reason := call(w.server(), method, fields)
		if reason == Refused {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		outcome := decided(reason)
		w.history.End(operation, outcome)
		if outcome != Unknown {
			return
		}
		operation.Repeated = true
	}
}

// decided is the outcome of a call of a lease or a token.
func decided(reason Reason) Outcome {
	switch reason {
	case "":
		return OK
	case "LEASE_LOST":
		return Lost
	}
	return Unknown
}

// hold takes a lock, renews it a few times, and gives it back, most of the time.
func (w *worker) hold(lock string, mode Mode) {
	operation := w.begin(Acquire, lock)
	operation.Hold, operation.Mode = operation.ID, mode
	operation.Owner = fmt.Sprint("owner-", w.number%owners)
	operation.Waits = w.random.Intn(3) < w.Waiting
	operation.Reentrant = w.Reenters && w.random.Intn(2) == 0
	lease, ok := w.acquire(&operation)
	if !ok {
		return
	}
	w.see(lock, operation.Token)
	fields := Fields{"leaseId": lease}
	for range w.random.Intn(4) {
		// Now and then for longer than the lease lives.
		time.Sleep(time.Duration(w.random.ExpFloat64() * 0.3 * float64(w.TTL)))
		if !w.renew(lock, operation.Hold, fields) || time.Now().After(w.end) {
			break
		}
	}
	// Now and then it leaves the lease to its end.
	if w.random.Intn(6) > 0 {
		release := w.begin(Release, lock)
		release.Hold = operation.Hold
		w.finish(release, "LockService/Release", fields)
	}
}

// acquire repeats an Acquire by its request_id until it is decided.
func (w *worker) acquire(operation *Operation) (lease string, ok bool) {
	fields := Fields{
		"namespace": "default", "name": operation.Lock, "owner": operation.Owner, "ttl": Duration(w.TTL),
		"mode": operation.Mode.fields(), "reentrant": operation.Reentrant,
		"requestId": fmt.Sprintf("%d-%d-%d", w.Seed, w.number, operation.ID),
	}
	if operation.Waits {
		fields["wait"] = Duration(2 * time.Second)
	}
	outcome := Unknown
	for range 12 {
		sent := w.history.Now()
		answer, reason := call(w.server(), "LockService/Acquire", fields)
		switch reason {
		case "":
			operation.Token = answer.Lease.Token
			operation.Until = sent + int64(answer.Lease.Waited) + int64(answer.Lease.TTL)
			w.history.End(*operation, OK)
			return answer.Lease.ID, true
		case "LOCK_HELD", "WAIT_TIMEOUT":
			outcome = Held
		case "LEASE_LOST", "ALREADY_RELEASED":
			// An earlier try was granted, and its lease has ended.
		default:
			time.Sleep(time.Duration(sent + int64(time.Second) - w.history.Now()))
			continue
		}
		break
	}
	w.history.End(*operation, outcome)
	return "", false
}

// renew says whether the lease may still be held.
func (w *worker) renew(lock string, hold int, fields Fields) bool {
	operation := w.begin(Renew, lock)
	operation.Hold = hold
	answer, reason := call(w.server(), "LockService/Renew", fields)
	if reason == Refused {
		return true
	}
	operation.Until = operation.Call + int64(answer.Lease.TTL)
	outcome := decided(reason)
	w.history.End(operation, outcome)
	return outcome != Lost
}
