package main

import (
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// A claim that holds. Without a known token it was granted to a call that has no answer.
type claim struct {
	token     int64 // 0: not known
	above     int64 // an unknown token is above this one
	owner     string
	mode      Mode
	reentrant bool
	// holds are the ids of the acquires whose leases are part of it.
	holds []int
	// unanswered says that a hold whose lease nobody knows may be part of it: it may end at any time.
	unanswered bool
}

// The state of one lock.
type state struct {
	claims []claim
	last   int64 // the highest token that was granted
}

func (s state) equal(other state) bool {
	return s.last == other.last && slices.EqualFunc(s.claims, other.claims, func(a, b claim) bool {
		return a.token == b.token && a.above == b.above && a.owner == b.owner && a.mode == b.mode &&
			a.unanswered == b.unanswered && slices.Equal(a.holds, b.holds)
	})
}

func (s state) String() string {
	text := "free"
	for i, c := range s.claims {
		if i == 0 {
			text = ""
		}
		text += fmt.Sprintf("%d of %s %v ", c.token, c.owner, c.holds)
	}
	return text
}

// fits says whether a claim of this mode can be granted beside the holders.
func (s state) fits(mode Mode) bool {
	permits, limit := mode.Permits, mode.Limit
	for _, c := range s.claims {
		if c.mode.Shared != mode.Shared || c.mode.Permits == 0 != (mode.Permits == 0) {
			return false
		}
		if !mode.Shared && mode.Permits == 0 {
			return false
		}
		permits, limit = permits+c.mode.Permits, min(limit, c.mode.Limit)
	}
	return mode.Permits == 0 || permits <= limit
}

func (s state) index(matches func(claim) bool) int { return slices.IndexFunc(s.claims, matches) }

func (s state) withHold(hold int) int {
	return s.index(func(c claim) bool { return slices.Contains(c.holds, hold) })
}

func (s state) withToken(token int64) int {
	return s.index(func(c claim) bool { return c.token == token })
}

// without is the state after the end of a claim.
func (s state) without(i int) state {
	s.claims = slices.Delete(slices.Clone(s.claims), i, i+1)
	return s
}

// with is the state with a claim in place of an earlier one, or added.
func (s state) with(i int, c claim) state {
	s.claims = slices.Clone(s.claims)
	if i == len(s.claims) {
		s.claims = append(s.claims, c)
	}
	s.claims[i] = c
	s.last = max(s.last, c.token)
	return s
}

// afterUnanswered are the states that may follow by the ends of claims whose leases nobody knows.
func (s state) afterUnanswered() []state {
	all := []state{s}
	for i := len(s.claims) - 1; i >= 0; i-- {
		if len(s.claims[i].holds) > 0 {
			continue
		}
		for _, other := range all {
			all = append(all, other.without(i))
		}
	}
	return all
}

// step are the states that may follow an operation: none, if its outcome breaks a promise.
func step(s state, o Operation) []state {
	switch o.Kind {
	case Acquire:
		return acquired(s, o)
	case Get:
		return shown(s, o)
	case Renew:
		if (s.withHold(o.Hold) >= 0) == (o.Outcome == OK) {
			return []state{s}
		}
		return nil
	case Release:
		i := s.withHold(o.Hold)
		return ended(s, o, i, func() state { return s.released(i, o.Hold) })
	case Force:
		i := s.withToken(o.Token)
		return ended(s, o, i, func() state { return s.without(i) })
	case Check:
		var all []state
		for _, s := range s.afterUnanswered() {
			if (s.withToken(o.Token) >= 0) == (o.Outcome == OK) {
				all = append(all, s)
			}
		}
		return all
	case Expire:
		if i := s.withToken(o.Token); i >= 0 {
			return []state{s.without(i)}
		}
		return []state{s}
	}
	panic("no such operation: " + o.Kind)
}

// ended are the states after a Release or Force of the claim at i, -1 if it is not held.
func ended(s state, o Operation, i int, end func() state) []state {
	switch {
	case i < 0 && (o.Outcome != OK || o.Repeated):
		return []state{s}
	case i < 0:
		return nil
	case o.Outcome == OK:
		return []state{end()}
	case o.Outcome == Unknown:
		return []state{s, end()}
	}
	return nil
}

func (s state) released(i, hold int) state {
	c := s.claims[i]
	c.holds = slices.DeleteFunc(slices.Clone(c.holds), func(other int) bool { return other == hold })
	if len(c.holds) == 0 && !c.unanswered {
		return s.without(i)
	}
	return s.with(i, c)
}

// mayReenter is the claim to which a re-entry adds a hold.
func (s state) mayReenter(o Operation) int {
	return s.index(func(c claim) bool { return o.Reentrant && c.reentrant && c.owner == o.Owner && c.mode == o.Mode })
}

func acquired(s state, o Operation) []state {
	granted := claim{token: o.Token, owner: o.Owner, mode: o.Mode, reentrant: o.Reentrant, holds: []int{o.Hold}}
	switch o.Outcome {
	case OK:
		return grantedTo(s, o, granted)
	case Held:
		if i := s.mayReenter(o); i >= 0 && len(s.claims[i].holds) > 0 {
			return nil
		}
		if o.Queued || !s.fits(o.Mode) {
			return []state{s}
		}
		return nil
	}
	granted.token, granted.holds, granted.unanswered, granted.above = 0, nil, true, s.last
	all := []state{s}
	for _, s := range s.afterUnanswered() {
		if i := s.mayReenter(o); i >= 0 {
			c := s.claims[i]
			c.unanswered = true
			all = append(all, s.with(i, c))
		} else if s.fits(o.Mode) {
			all = append(all, s.with(len(s.claims), granted))
		}
	}
	return all
}

func grantedTo(s state, o Operation, granted claim) []state {
	var all []state
	for _, s := range s.afterUnanswered() {
		i := s.mayReenter(o)
		switch {
		case i >= 0 && s.claims[i].token == o.Token, i >= 0 && s.claims[i].token == 0 && o.Token > s.claims[i].above:
			c := s.claims[i]
			c.token, c.holds = o.Token, append(slices.Clone(c.holds), o.Hold)
			all = append(all, s.with(i, c))
		case i < 0 && o.Token > s.last && s.fits(o.Mode):
			all = append(all, s.with(len(s.claims), granted))
		}
	}
	return all
}

// shown are the states in which exactly these tokens hold.
func shown(s state, o Operation) []state {
	var all []state
	for _, s := range s.afterUnanswered() {
		if len(s.claims) != len(o.Tokens) {
			continue
		}
		rest := slices.Clone(o.Tokens)
		for _, c := range s.claims {
			if i := slices.Index(rest, c.token); i >= 0 {
				rest = slices.Delete(rest, i, i+1)
			}
		}
		slices.Sort(rest)
		for i, c := range s.claims {
			if c.token == 0 && len(rest) > 0 && rest[0] > c.above {
				c.token, rest = rest[0], rest[1:]
				s = s.with(i, c)
			}
		}
		if len(rest) == 0 {
			all = append(all, s)
		}
	}
	return all
}

// A waiter whose call ended without an answer may stand in the queue for this long: until its replica sees that the
// connection is gone, or others that the replica is.
const lingers = 12 * time.Second

// withQueues says of each refused Acquire whether another one may have waited in front of it: nobody overtakes a waiter, so
// that a lock which is free is refused while one waits.
func withQueues(operations []Operation) []Operation {
	all := slices.Clone(operations)
	for i, o := range all {
		if o.Kind != Acquire || o.Outcome != Held {
			continue
		}
		all[i].Queued = slices.ContainsFunc(operations, func(other Operation) bool {
			return other.Kind == Acquire && other.Waits && other.ID != o.ID && other.Lock == o.Lock &&
				other.Call < o.Return && other.Return > o.Call
		})
	}
	return all
}

// What is not decided may take effect until its lock is of no more interest to it.
func withLateEffects(operations []Operation) []Operation {
	all := slices.Clone(operations)
	for i, o := range all {
		if o.Outcome == Unknown {
			all[i].Return = o.Return + int64(lingers)
		}
	}
	return slices.DeleteFunc(all, func(o Operation) bool { return o.Kind == Renew && o.Outcome == Unknown })
}

// withExpiries adds the ends by time: a claim may end at any moment after the last time that a client was promised, and has
// ended when a later one is granted that it excludes. A claim that ends too early is not moved: nothing explains it.
func withExpiries(operations []Operation) []Operation {
	type known struct {
		first  Operation
		until  int64
		before int64
	}
	claims := map[int64]*known{}
	token := map[int]int64{}
	for _, o := range operations {
		if o.Kind == Acquire && o.Outcome == OK {
			token[o.Hold] = o.Token
			if claims[o.Token] == nil {
				claims[o.Token] = &known{first: o, before: math.MaxInt64}
			}
		}
	}
	for _, o := range operations {
		of := claims[token[o.Hold]]
		if of != nil && o.Outcome == OK && (o.Kind == Acquire || o.Kind == Renew) {
			of.until = max(of.until, o.Until)
		}
	}
	all := operations
	for at, of := range claims {
		for later, other := range claims {
			if later > at && (other.first.Mode == Mode{}) && (of.first.Mode == Mode{}) {
				of.before = min(of.before, other.first.Return)
			}
		}
		all = append(all, Operation{
			Kind: Expire, Outcome: OK, Lock: of.first.Lock, Client: of.first.Client, Token: at,
			Call: of.until, Return: max(of.until, of.before),
		})
	}
	return all
}

func model() porcupine.Model {
	nondeterministic := porcupine.NondeterministicModel{
		Init: func() []any { return []any{state{}} },
		Step: func(s, in, _ any) []any {
			var all []any
			for _, next := range step(s.(state), in.(Operation)) {
				all = append(all, next)
			}
			return all
		},
		Equal: func(a, b any) bool { return a.(state).equal(b.(state)) },
		Hash: func(s any) uint64 {
			hash := fnv.New64a()
			fmt.Fprint(hash, s.(state).last, len(s.(state).claims))
			return hash.Sum64()
		},
		DescribeOperation: func(in, _ any) string { return in.(Operation).String() },
		DescribeState:     func(s any) string { return fmt.Sprint(s) },
	}
	return nondeterministic.ToModel()
}

// byLock are the operations of each lock, with the ends that no client called.
func byLock(operations []Operation) map[string][]Operation {
	locks := map[string][]Operation{}
	for _, o := range operations {
		locks[o.Lock] = append(locks[o.Lock], o)
	}
	for lock, of := range locks {
		locks[lock] = withExpiries(withQueues(withLateEffects(of)))
	}
	return locks
}

// Verdict says of each lock whether what its clients saw has a legal explanation.
type Verdict struct {
	Results map[string]porcupine.CheckResult
	infos   map[string]porcupine.LinearizationInfo
}

// Judge looks for an explanation of each lock's history, for at most so long a lock.
func Judge(operations []Operation, patience time.Duration) Verdict {
	verdict := Verdict{map[string]porcupine.CheckResult{}, map[string]porcupine.LinearizationInfo{}}
	for lock, of := range byLock(operations) {
		var all []porcupine.Operation
		for _, o := range of {
			all = append(all, porcupine.Operation{ClientId: o.Client, Input: o, Call: o.Call, Return: o.Return})
		}
		verdict.Results[lock], verdict.infos[lock] = porcupine.CheckOperationsVerbose(model(), all, patience)
	}
	return verdict
}

// Locks are those with this result, in order.
func (v Verdict) Locks(result porcupine.CheckResult) []string {
	var all []string
	for lock, of := range v.Results {
		if of == result {
			all = append(all, lock)
		}
	}
	slices.Sort(all)
	return all
}

// Whole is Ok only if each lock's is.
func (v Verdict) Whole() porcupine.CheckResult {
	for _, result := range []porcupine.CheckResult{porcupine.Illegal, porcupine.Unknown} {
		if len(v.Locks(result)) > 0 {
			return result
		}
	}
	return porcupine.Ok
}

// Draw writes the page that shows the history of a lock.
func (v Verdict) Draw(lock, path string) error {
	return porcupine.VisualizePath(model(), v.infos[lock], path)
}
