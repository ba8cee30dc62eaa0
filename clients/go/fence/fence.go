// Package fence is the resource's half of fencing: a resource that refuses a holder whose lock has a newer holder.
//
// No lease stops a holder that is paused and writes too late. The resource keeps the highest token of each lock, and each
// holder raises it before the first read of its work, in the step that also commits the work:
//
//	err = client.Do(ctx, "reports", func(ctx context.Context, lock *fencepost.Lock) error {
//		return fence.Transaction(ctx, db, fence.PostgreSQL, lock, func(tx *sql.Tx) error {
//			...
//		})
//	})
//
// A holder that was paused after its read, and whose lock another one took meanwhile, finds a higher token and gets
// [ErrStaleToken]. To compare only in the condition of the write is not enough: the paused holder may write before the
// newer one does, which then overwrites it with what it computed from the older state.
//
// This is for exclusive locks. Holders of a shared lock or of a semaphore hold at the same time, so the one with the
// highest token would refuse the others.
package fence

import (
	"errors"
	"fmt"
	"strconv"
)

// end is above all tokens.
const end = 1 << 53

var (
	// ErrStaleToken says that a newer holder of the lock has used the resource: nothing was changed.
	ErrStaleToken = errors.New("fence: a newer holder of the lock has used the resource")
	// ErrInvalidToken says that a token is no number from 1 to 2^53 - 1.
	ErrInvalidToken = errors.New("fence: a token is a number from 1 to 2^53 - 1")
)

// Holder is a held lock, such as a [fencepost.Lock]: its name, and a check that returns its token, or an error if the lock
// is not held any more.
//
// [fencepost.Lock]: https://pkg.go.dev/github.com/fencepost/fencepost/clients/go/fencepost#Lock
type Holder interface {
	Name() string
	Check() (uint64, error)
}

type given struct {
	name  string
	token uint64
}

func (g given) Name() string           { return g.name }
func (g given) Check() (uint64, error) { return g.token, nil }

// Token is the holder that a request names, which brought the token of this lock.
func Token(name string, token uint64) Holder { return given{name, token} }

// check returns the token of a holder.
func check(lock Holder) (uint64, error) {
	token, err := lock.Check()
	if err == nil && (token == 0 || token >= end) {
		err = fmt.Errorf("%w, not %d", ErrInvalidToken, token)
	}
	return token, err
}

// parse reads a token; unlike strconv, it takes no sign.
func parse(text string) (uint64, error) {
	token, err := strconv.ParseUint(text, 10, 53)
	if err != nil || token == 0 || len(text) > 16 {
		return 0, fmt.Errorf("%w, not %q", ErrInvalidToken, text)
	}
	return token, nil
}

// parseKept reads the token that a resource keeps. An ErrInvalidToken is one of those that callers give.
func parseKept(text, problem string) (uint64, error) {
	token, err := parse(text)
	if err != nil {
		err = fmt.Errorf("fence: %s (%v)", problem, err)
	}
	return token, err
}

// refuse returns an ErrStaleToken if highest is above the token of the lock.
func refuse(lock Holder, token, highest uint64) error {
	if highest > token {
		return fmt.Errorf("%w: token %d of %q is too low", ErrStaleToken, token, lock.Name())
	}
	return nil
}
