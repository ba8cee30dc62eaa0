package fencepost

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/fencepost/fencepost/clients/go/fencepostpb"
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
	// ErrDenied says that no rule of the server allows the call.
	ErrDenied = errors.New("fencepost: permission denied")
	// ErrUnauthenticated says that the server does not know the credentials.
	ErrUnauthenticated = errors.New("fencepost: not authenticated")
	// ErrClosed says that the client is closed.
	ErrClosed = errors.New("fencepost: the client is closed")
)

func lost(cause, message string) *Error {
	return &Error{Code: codes.FailedPrecondition, Reason: "LEASE_LOST", Cause: cause, Message: message}
}

// Why a lock is not held any more.
var (
	errReleased = lost("released", "the lock was released")
	unrenewed   = lost("unrenewed", "no renewal was confirmed in time")
	dropped     = lost("dropped", "the lock was dropped without a release, and is not renewed any more")
)

// errIncomplete is an answer that cannot be used.
var errIncomplete = &Error{Code: codes.Internal, Reason: "INCOMPLETE", Message: "the server's response lacks a required field"}

// Error is a failed call, or the loss of a lease.
type Error struct {
	// Code is the gRPC code.
	Code codes.Code
	// Reason is the server's reason, such as "LOCK_HELD"; empty if no server answered. It is "INCOMPLETE" if an answer lacks
	// a lease: what it grants is released. It is "TLS" if the two sides do not agree on certificates or encryption.
	Reason string
	// Cause says for LEASE_LOST how the lease ended: "expired", "released", "forced", or "unknown" if the server does
	// not remember it. It is "unrenewed" if the client had no confirmation in time, so that the lease may have ended, and
	// "dropped" if nothing refers to the Lock any more.
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

// Is tells whether the error is one of the variables of this package.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrLocked:
		return e.Reason == "LOCK_HELD"
	case ErrTimeout:
		return e.Reason == "WAIT_TIMEOUT"
	case ErrLeaseLost:
		return e.Reason == "LEASE_LOST"
	case ErrDenied:
		return e.Code == codes.PermissionDenied
	case ErrUnauthenticated:
		return e.Code == codes.Unauthenticated
	}
	return false
}

// Holder is the owner of the lock that [ErrLocked] found held, and how long its lease lives without a renewal; empty where
// nobody holds it, because others wait.
func (e *Error) Holder() (owner string, remaining time.Duration) {
	ms, _ := strconv.ParseInt(e.Metadata["remaining_ttl_ms"], 10, 64)
	return e.Metadata["owner"], time.Duration(ms) * time.Millisecond
}

// errorOfCall returns the error of a call or stream.
func errorOfCall(err error, trailer metadata.MD) *Error {
	if failed, ok := errors.AsType[*Error](err); ok {
		return failed
	}
	return newError(status.Convert(err), strings.Join(trailer.Get("fencepost-reason"), ""), strings.Join(trailer.Get("fencepost-cause"), ""))
}

// errorOfCommand returns the error of a command.
func errorOfCommand(e *pb.SessionEvent_CommandError) *Error {
	s := status.FromProto(&spb.Status{Code: e.GetCode(), Message: e.GetMessage(), Details: e.GetDetails()})
	return newError(s, e.GetReason(), e.GetCause())
}

func newError(s *status.Status, reason, cause string) *Error {
	e := &Error{Code: s.Code(), Reason: reason, Cause: cause, Message: s.Message(), err: s.Err()}
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

// unknown tells whether the call may have taken effect, also because the store did not answer the server.
func (e *Error) unknown() bool {
	return e.unanswered() || e == errIncomplete || e.Reason == "BACKEND_UNAVAILABLE" || e.Reason == "NO_QUORUM"
}

// retryable tells whether a repetition may succeed, also because a server answered that it cannot serve now.
func (e *Error) retryable() bool {
	busy := []string{"BACKEND_UNAVAILABLE", "NO_QUORUM", "BACKEND_QUARANTINED", "OVERLOADED"}
	return e.unanswered() || slices.Contains(busy, e.Reason)
}

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
