package fence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
)

// tokenPrefix begins each object. The next line is 1, or 0 while the object has a token alone.
const tokenPrefix = "fencing-token: "

// attempts bounds the writes: one fails only if another one came between, and those of one lock are few.
const attempts = 100

// Object is an object of S3, or of a store with conditional writes, whose body begins with the token of its last holder.
//
// The token is in the body, because a conditional write compares the ETag, which is that of the body alone: with the token
// in the metadata, a paused holder that read the same bytes as they are now would pass.
type Object struct {
	// Get returns the body of the object and its ETag. Both are empty if there is no object; if there is no bucket, it fails.
	Get func(ctx context.Context) (body []byte, etag string, err error)
	// Put replaces the object on the condition that it has this ETag (If-Match), or if it is empty, that there is none
	// (If-None-Match: *). It returns false if another write came between: the store answers 409, 412, or that the object is
	// missing.
	Put func(ctx context.Context, body []byte, etag string) (done bool, err error)
}

// Read raises the token of a lock, then returns what the object has, which is nil if there is none. Returns
// [ErrStaleToken].
func (o Object) Read(ctx context.Context, lock Holder) ([]byte, error) {
	return o.change(ctx, lock, nil)
}

// Write replaces what the object has. After an [ErrStaleToken] nothing was changed.
func (o Object) Write(ctx context.Context, lock Holder, data []byte) error {
	if data == nil {
		data = []byte{}
	}
	_, err := o.change(ctx, lock, data)
	return err
}

// change puts the token and data, or if that is nil, the data that it found, which it returns.
func (o Object) change(ctx context.Context, lock Holder, data []byte) ([]byte, error) {
	token, err := check(lock)
	if err != nil {
		return nil, err
	}
	for range attempts {
		body, etag, err := o.Get(ctx)
		if err != nil {
			return nil, err
		}
		if len(body) > 0 && etag == "" {
			return nil, errors.New("fence: the store gave the object without an ETag, on which writes depend")
		}
		var found []byte
		var highest uint64
		if etag != "" {
			if highest, found, err = decode(body); err != nil {
				return nil, err
			}
		}
		if err := refuse(lock, token, highest); err != nil {
			return nil, err
		}
		next := data
		if data == nil {
			if highest == token {
				return found, nil
			}
			next = found
		}
		if done, err := o.Put(ctx, encode(token, next), etag); err != nil || done {
			return found, err
		}
	}
	return nil, fmt.Errorf("fence: the store refused the write at %d attempts, as if others had replaced the object", attempts)
}

func encode(token uint64, data []byte) []byte {
	filled := 0
	if data != nil {
		filled = 1
	}
	return append(fmt.Appendf(nil, "%s%d\n%d\n", tokenPrefix, token, filled), data...)
}

// decode returns the token of a body and the data behind it.
func decode(body []byte) (uint64, []byte, error) {
	line, rest, _ := bytes.Cut(body, []byte("\n"))
	text, isToken := bytes.CutPrefix(line, []byte(tokenPrefix))
	filled, data, isComplete := bytes.Cut(rest, []byte("\n"))
	if !isToken || !isComplete {
		text = nil
	}
	token, err := parseKept(string(text), "the object does not begin with a token: put one there first")
	if string(filled) == "0" {
		return token, nil, err
	}
	return token, append([]byte{}, data...), err
}
