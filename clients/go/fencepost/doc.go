// Package fencepost takes locks of a Fencepost server, keeps their leases alive, and tells when one is lost.
//
//	client, err := fencepost.New(ctx, "locks:50051", fencepost.WithNamespace("jobs"))
//	...
//	defer client.Close(context.Background())
//	err = client.Do(ctx, "reports", func(ctx context.Context, lock *fencepost.Lock) error {
//		return save(ctx, lock.Token())
//	}, fencepost.Wait(30*time.Second))
//
// The context of the function ends when the lease is or may be lost, and [context.Cause] is then an [ErrLeaseLost].
//
// A lease counts until the time at which its request was sent, plus the wait, plus its TTL. On Linux this is measured on
// a clock that runs on while the machine is suspended. No client can exclude that it acts a moment too late, because it
// can be paused between the check of the clock and its write. Where that matters, send [Lock.Token] with each write and
// let the resource refuse a token below the largest one that it has seen.
package fencepost
