package fencepost

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// The errors that most callers tell apart, for [errors.Is]. All others are an [*Error], or the error of the caller's
// context, unchanged.
var (
	// ErrLocked says that a call without a wait found the lock held or waited for.
	ErrLocked = errors.New("fencepost: the lock is held")
	// ErrTimeout says that the lock was not granted within the wait.
	ErrTimeout = errors.New("fencepost: the lock was not granted within the wait")
	// ErrLeaseLost says that a lease has ended, or may have, because no renewal was confirmed in time.
	ErrLeaseLost = errors.New("fencepost: the lease is lost")
	// ErrClosed says that the client is closed.
	ErrClosed = errors.New("fencepost: the client is closed")
)

var reasons = map[error]string{ErrLocked: "LOCK_HELD", ErrTimeout: "WAIT_TIMEOUT", ErrLeaseLost: "LEASE_LOST"}

// errReleased is why the context of a released lock has ended.
var errReleased = &Error{Reason: "LEASE_LOST", Cause: "released", Message: "the lock was released"}

// errIncomplete is an answer that cannot be used.
var errIncomplete = &Error{Code: codes.Internal, Reason: "INCOMPLETE", Message: "the server's response lacks a required field"}

// Error is a failed call, or the loss of a lease.
type Error struct {
	// Code is the gRPC code.
	Code codes.Code
	// Reason is the server's reason, such as "LOCK_HELD"; empty if no server answered. It is "INCOMPLETE" if an answer lacks
	// a lease: what it grants is released.
	Reason string
	// Cause says for LEASE_LOST how the lease ended: "expired", "released", "forced", or "unknown" if the server does
	// not remember it. It is "unrenewed" if the client had no confirmation in time, so that the lease may have ended.
	Cause string
	// Message is for developers.
	Message string
	// RetryAfter is the pause that the server asks for; zero if it names none.
	RetryAfter time.Duration
	// Metadata has details, such as the "owner" and "remaining_ttl_ms" of the holder for LOCK_HELD.
	Metadata map[string]string

	err error
}

// Error returns the message with its reason.
func (e *Error) Error() string {
	text := "fencepost: " + e.Message
	for _, detail := range []string{e.Reason, e.Cause} {
		if detail != "" {
			text += " (" + detail + ")"
		}
	}
	return text
}

// Unwrap returns the gRPC status error, if there is one.
func (e *Error) Unwrap() error { return e.err }

// Is tells whether the error is one of ErrLocked, ErrTimeout and ErrLeaseLost.
func (e *Error) Is(target error) bool { return e.Reason != "" && e.Reason == reasons[target] }

func newError(err error, trailer metadata.MD) *Error {
	s := status.Convert(err)
	e := &Error{Code: s.Code(), Message: s.Message(), err: err}
	e.Reason = strings.Join(trailer.Get("fencepost-reason"), "")
	e.Cause = strings.Join(trailer.Get("fencepost-cause"), "")
	for _, detail := range s.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			e.Metadata = detail.Metadata
		case *errdetails.RetryInfo:
			e.RetryAfter = detail.RetryDelay.AsDuration()
		}
	}
	return e
}

// unanswered tells whether no server answered, or one that stops: another server may serve.
func (e *Error) unanswered() bool {
	ofTransport := []codes.Code{codes.Unavailable, codes.Unknown, codes.Canceled, codes.DeadlineExceeded, codes.Internal}
	return e.Reason == "DRAINING" || e.Reason == "" && slices.Contains(ofTransport, e.Code)
}

// full tells whether the lock has no place for the claim now: another server would say the same.
func (e *Error) full() bool { return e.Reason == "QUEUE_FULL" }

// unknown tells whether the call may have taken effect, also because the store did not answer the server.
func (e *Error) unknown() bool {
	return e.unanswered() || e == errIncomplete || e.Reason == "BACKEND_UNAVAILABLE" || e.Reason == "NO_QUORUM"
}

// busy tells whether a server answered that it cannot serve now.
func (e *Error) busy() bool {
	return slices.Contains([]string{"BACKEND_UNAVAILABLE", "NO_QUORUM", "BACKEND_QUARANTINED", "OVERLOADED"}, e.Reason)
}

// retryable tells whether a repetition may succeed.
func (e *Error) retryable() bool { return e.unanswered() || e.busy() }

// pause is the time before attempt number n, counted from 1: what the server asks for, else 0.1 to 2 s.
func pause(n int, e *Error) time.Duration {
	if e != nil && e.RetryAfter > 0 {
		return e.RetryAfter
	}
	limit := min(200*time.Millisecond<<min(n-1, 4), 2*time.Second)
	return limit/2 + rand.N(limit/2)
}

// sleep returns false if ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
