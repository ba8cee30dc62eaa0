package fence

import (
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
)

// Header carries the token of a call.
const Header = "X-Fencing-Token"

// SetHeader gives a call of a protected service the token of a lock, or returns the error of its check.
func SetHeader(header http.Header, lock Holder) error {
	token, err := check(lock)
	if err == nil {
		header.Set(Header, strconv.FormatUint(token, 10))
	}
	return err
}

// Handler calls work with the token of each request. A request without a token is answered with 428, one with a bad token
// or several with 400, one whose work returns [ErrStaleToken] with 412, and another error is logged and answered with 500.
//
// It compares nothing itself, because only the transaction of the work can: work raises the token there, by [Transaction],
// and writes its answer when that has committed.
func Handler(work func(w http.ResponseWriter, r *http.Request, token uint64) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given := r.Header.Values(Header)
		if len(given) == 0 {
			http.Error(w, "the header "+Header+" must have the token of the lock", http.StatusPreconditionRequired)
			return
		}
		token, err := parse(strings.Join(given, ", "))
		if err != nil {
			http.Error(w, "the header "+Header+" must be a number from 1 to 2^53 - 1", http.StatusBadRequest)
			return
		}
		err = work(w, r, token)
		switch {
		case err == nil:
		case errors.Is(err, ErrStaleToken):
			http.Error(w, "a newer holder of the lock has used this resource", http.StatusPreconditionFailed)
		default:
			slog.ErrorContext(r.Context(), "fence: a handler failed", "path", r.URL.Path, "error", err)
			http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		}
	})
}
