package main

import (
	"fmt"
	"sync"
	"time"
)

// Kind is what an operation asks for.
type Kind string

// The calls of clients, and Expire, which no client calls: a claim may end by time.
const (
	Acquire Kind = "acquire"
	Renew   Kind = "renew"
	Release Kind = "release"
	Force   Kind = "force"
	Check   Kind = "check"
	Get     Kind = "get"
	Expire  Kind = "expire"
)

// Outcome is what the client was answered.
type Outcome string

// The outcomes. What is Unknown may have taken effect: there was no answer, or one that does not say.
const (
	OK      Outcome = "ok"
	Held    Outcome = "held" // Acquire: another claim was in the way.
	Lost    Outcome = "lost" // The lease or the token is not held. Check: the token is not held.
	Unknown Outcome = "unknown"
)

// Mode is how much of a lock a claim takes.
type Mode struct {
	Shared  bool
	Permits int // 0: the claim is no semaphore's.
	Limit   int
}

// Operation is one call as its client saw it.
type Operation struct {
	ID      int
	Kind    Kind
	Outcome Outcome
	Lock    string
	Client  int
	Owner   string
	// Hold is the id of the Acquire whose lease this is.
	Hold int
	// Token is the fencing token of Acquire, Force, Check and Expire, where it is known.
	Token int64
	// Tokens are those of the holders that Get shows.
	Tokens []int64

	Mode      Mode
	Reentrant bool
	// Waits says that an Acquire may stand in the queue.
	Waits bool
	// Queued says that another Acquire may have waited in front of this one.
	Queued bool
	// Repeated says that an earlier try of this Release or Force has an unknown outcome.
	Repeated bool

	// Call and Return are nanoseconds of one monotonic clock.
	Call, Return int64
	// Until is the time before which the lease must not end: when its last try was sent, and what it was answered.
	Until int64
}

// History is what all clients saw.
type History struct {
	begin time.Time

	mutex      sync.Mutex
	next       int
	operations []Operation
}

// NewHistory begins its clock.
func NewHistory() *History { return &History{begin: time.Now()} }

// Now is the time on the clock of the history.
func (h *History) Now() int64 { return int64(time.Since(h.begin)) }

// Begin is an operation that is called now.
func (h *History) Begin(kind Kind, lock string, client int) Operation {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.next++
	return Operation{ID: h.next, Kind: kind, Lock: lock, Client: client, Call: h.Now()}
}

// End notes an operation with its outcome.
func (h *History) End(operation Operation, outcome Outcome) {
	operation.Outcome = outcome
	h.mutex.Lock()
	defer h.mutex.Unlock()
	if operation.Return == 0 {
		operation.Return = h.Now()
	}
	h.operations = append(h.operations, operation)
}

// Operations are all that have ended.
func (h *History) Operations() []Operation {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return append([]Operation(nil), h.operations...)
}

func (o Operation) String() string {
	switch o.Kind {
	case Expire:
		return fmt.Sprintf("%d may expire", o.Token)
	case Get:
		return fmt.Sprintf("get -> %v", o.Tokens)
	case Acquire:
		return fmt.Sprintf("acquire #%d by %s -> %s %d", o.Hold, o.Owner, o.Outcome, o.Token)
	case Renew, Release:
		return fmt.Sprintf("%s #%d -> %s", o.Kind, o.Hold, o.Outcome)
	}
	return fmt.Sprintf("%s %d -> %s", o.Kind, o.Token, o.Outcome)
}
