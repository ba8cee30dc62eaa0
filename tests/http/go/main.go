// Takes, watches and releases a lock with the client of Connect.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	pb "github.com/fencepost/fencepost/clients/go/fencepostpb"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"
)

func main() {
	for _, version := range []string{"http1", "http2"} {
		for _, kind := range []string{"json", "proto"} {
			said, err := use(version, kind)
			if err != nil {
				fmt.Fprintln(os.Stderr, version, kind, err)
				os.Exit(1)
			}
			fmt.Printf("%s %s: %s\n", version, kind, strings.Join(said, ", "))
		}
	}
}

func use(version, kind string) ([]string, error) {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(version == "http1")
	protocols.SetUnencryptedHTTP2(version == "http2")
	client := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	var options []connect.ClientOption
	if kind == "json" {
		options = append(options, connect.WithProtoJSON())
	}
	base := os.Getenv("SERVER") + "/fencepost.v1.LockService/"
	acquire := connect.NewClient[pb.AcquireRequest, pb.AcquireResponse](client, base+"Acquire", options...)
	release := connect.NewClient[pb.ReleaseRequest, pb.ReleaseResponse](client, base+"Release", options...)
	watch := connect.NewClient[pb.WatchLockRequest, pb.WatchLockResponse](client, base+"WatchLock", options...)
	name := "go/" + version + "/" + kind
	ask := func(owner string) *connect.Request[pb.AcquireRequest] {
		ttl := durationpb.New(30 * time.Second)
		return connect.NewRequest(&pb.AcquireRequest{Namespace: "default", Name: name, Owner: owner, Ttl: ttl})
	}
	var said []string

	taken, err := acquire.CallUnary(context.Background(), ask("me"))
	if err != nil {
		return nil, err
	}
	lease := taken.Msg.Lease
	if lease.Owner == "me" && lease.FencingToken > 0 {
		said = append(said, "taken")
	}
	_, err = acquire.CallUnary(context.Background(), ask("you"))
	var refused *connect.Error
	if !errors.As(err, &refused) || len(refused.Details()) == 0 {
		return nil, fmt.Errorf("no error with details: %w", err)
	}
	detail, err := refused.Details()[0].Value()
	if err != nil {
		return nil, err
	}
	said = append(said, detail.(*errdetails.ErrorInfo).Reason+" "+refused.Code().String())

	limited, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	request := &pb.WatchLockRequest{Namespace: "default", Name: name}
	events, err := watch.CallServerStream(limited, connect.NewRequest(request))
	if err != nil {
		return nil, err
	}
	for events.Receive() {
		if state := events.Msg().GetState(); state != nil {
			if state.HolderCount == 1 {
				said = append(said, "watched held")
			}
			_, err = release.CallUnary(context.Background(), connect.NewRequest(&pb.ReleaseRequest{LeaseId: lease.LeaseId}))
			if err != nil {
				return nil, err
			}
		} else if events.Msg().GetChange().GetHolderCount() == 0 {
			said = append(said, "watched free")
		}
	}
	return append(said, connect.CodeOf(events.Err()).String()), nil
}
